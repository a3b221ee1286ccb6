#include "index/block_hash.h"
