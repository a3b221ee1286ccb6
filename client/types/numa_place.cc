#include "client/types/numa_place.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

namespace kv {
namespace {

constexpr std::string_view kPci = "pci:";
constexpr const char* kAllowed = "allowed: off, nodes such as 1 or 0-1, or a PCI device such as pci:0000:3b:00.0";

/// Takes hexadecimal digits and `end` from the front of `text`. Empty if they are missing.
std::optional<unsigned> take_hex(std::string_view& text, std::size_t digits_min, std::size_t digits_max, char end) {
  const std::size_t digits = std::min(text.find(end), text.size());
  unsigned value = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + digits, value, 16);
  if (digits < digits_min || digits > digits_max || error != std::errc() || stopped != text.data() + digits)
    return std::nullopt;
  text.remove_prefix(std::min(digits + 1, text.size()));
  return value;
}

/// A device's name in sysfs, from its address in the forms of CUDA, NVML and lspci: any case, a domain of up to eight
/// digits or none. Strict, because it becomes part of a path.
std::optional<std::string> pci_name(std::string_view text) {
  const bool has_domain = std::ranges::count(text, ':') == 2;
  const auto domain = has_domain ? take_hex(text, 1, 8, ':') : 0;
  const auto bus = take_hex(text, 2, 2, ':'), device = take_hex(text, 2, 2, '.');
  const bool has_function = text.size() == 1 && text.front() >= '0' && text.front() <= '7';
  if (!domain || !bus || !device || *device > 0x1f || !has_function) return std::nullopt;
  char name[32];
  std::snprintf(name, sizeof name, "%04x:%02x:%02x.%c", *domain, *bus, *device, text.front());
  return name;
}

/// The allowed ones of `processors`.
std::vector<unsigned> usable(std::span<const unsigned> processors, std::span<const unsigned> allowed) {
  std::vector<unsigned> both;
  std::ranges::set_intersection(processors, allowed, std::back_inserter(both));
  return both;
}

std::string processors_text(const NumaChoice& choice) {
  return "processors " + number_list_text(choice.processors) + " may not be used by this process";
}

Result<NumaPlace, Failure> place_at_device(const std::string& wish, const NumaTopology& topology,
                                           const std::string& root, std::span<const unsigned> allowed) {
  const auto name = pci_name(std::string_view(wish).substr(kPci.size()));
  if (!name) return Failure(Errc::kBadRequest, "'" + wish + "' is no address of a PCI device; " + kAllowed);
  const std::string folder = root + "/sys/bus/pci/devices/" + *name;
  std::error_code error;
  if (!std::filesystem::exists(folder, error))
    return Failure(Errc::kBadRequest, "'" + wish + "': this machine has no PCI device " + *name + "; " + kAllowed);
  NumaPlace place{.choice = {}, .node_count = topology.with_memory().size()};
  std::ifstream file(folder + "/numa_node");
  int number = -1;
  if (!(file >> number) || number < 0) {
    place.why_not = "this machine does not say at which NUMA node " + *name + " is";
    return place;
  }
  const std::string node = "NUMA node " + std::to_string(number) + ", where " + *name + " is, ";
  auto choice = choose_numa(topology, std::to_string(number));
  if (!choice) {
    place.why_not = node + "has no memory for this process";
    return place;
  }
  const auto processors = usable(choice->processors, allowed);
  if (processors.empty() && !choice->processors.empty()) place.why_not = "threads: " + processors_text(*choice);
  choice->processors = processors;
  place.choice = *std::move(choice);
  return place;
}

Result<NumaPlace, Failure> place_at_nodes(const std::string& wish, const NumaTopology& topology,
                                          std::span<const unsigned> allowed) {
  const auto numbers = parse_number_list(wish);
  if (!numbers || numbers->empty()) return Failure(Errc::kBadRequest, "'" + wish + "'; " + kAllowed);
  auto choice = choose_numa(topology, wish);
  if (!choice) return choice.error();
  const auto processors = usable(choice->processors, allowed);
  if (processors.empty() && !choice->processors.empty())
    return Failure(Errc::kBadRequest, "'" + wish + "': " + processors_text(*choice));
  choice->processors = processors;
  return NumaPlace{.choice = *std::move(choice), .node_count = topology.with_memory().size()};
}

}  // namespace

Result<NumaPlace, Failure> choose_numa_place(const std::string& wish, const std::string& root,
                                             std::span<const unsigned> allowed) {
  if (wish.empty() || wish == "off") return NumaPlace();
  const NumaTopology topology = NumaTopology::read(root);
  auto place =
      wish.starts_with(kPci) ? place_at_device(wish, topology, root, allowed) : place_at_nodes(wish, topology, allowed);
  if (place && place->node_count < 2 && place->is_anywhere())
    place->why_not = "this machine has one NUMA node of memory";
  return place;
}

Result<NumaPlace, Failure> find_numa_place(const std::string& wish) {
  auto place = choose_numa_place(wish, "", allowed_processors());
  if (!place || place->choice.memory.empty()) return place;
  const auto add = [&](const std::string& why) { place->why_not += (place->why_not.empty() ? "" : "; ") + why; };
  if (wish.starts_with(kPci) && has_memory_policy()) {
    add("memory lies where numactl, or what started this process, has said");
    place->choice.memory.clear();
  } else if (const error_code unplaced = run_on_nodes(place->choice, [] {})) {
    // Not an error: a thread on the right processors has most of its memory near them.
    add("memory may not be placed (" + unplaced.message() + "): it lies near the processors that touch it first");
  }
  return place;
}

Result<std::unique_ptr<SharedMemory>> make_memory(const NumaPlace& place, std::size_t bytes) {
  Result<std::unique_ptr<SharedMemory>> made = error_code(Errc::kBadRequest);
  static_cast<void>(run_on_nodes(place.choice, [&] { made = SharedMemory::create(bytes); }));
  return made;
}

}  // namespace kv
