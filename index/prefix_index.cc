#include "index/prefix_index.h"
