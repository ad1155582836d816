// Checks of our own promises. They end a debug or sanitizer build and vanish in a release build;
// whatever a user can cause is a Status instead.
#pragma once

#include <cassert>

#define HEED_DCHECK(condition) assert(condition)
