#include "index/namespace_record.h"
