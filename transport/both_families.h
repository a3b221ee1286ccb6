// transport/both_families.h: [::] as an address to listen on: of IPv6 and of IPv4.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>

#include "base/result.h"

namespace kv {

/// Opens `acceptor` for `address`. [::] takes IPv4 too, whatever net.ipv6.bindv6only says; where the kernel has no IPv6
/// it becomes 0.0.0.0, so that one configuration fits pods of every kind.
template <class Acceptor>
void open_for(Acceptor& acceptor, asio::ip::tcp::endpoint& address, error_code& error) {
  const bool is_any = address.address() == asio::ip::address_v6::any();
  acceptor.open(address.protocol(), error);
  if (is_any && error == asio::error::address_family_not_supported) {
    address.address(asio::ip::address_v4::any());
    acceptor.open(address.protocol(), error);
  } else if (is_any && !error) {
    acceptor.set_option(asio::ip::v6_only(false), error);
  }
}

/// An IPv4 peer of a listener on [::] by its IPv4 address, so that limits, rights and logs know it by one name.
inline asio::ip::address unmapped(const asio::ip::address& address) {
  const bool is_mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  return is_mapped ? asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()) : address;
}

}  // namespace kv
