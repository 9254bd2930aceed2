// Which library multiplies matrices here: bits hold for one of these only.
#pragma once

#include <string>

namespace terrace {

// "oneDNN 2.6.3, AVX512_CORE_BF16": version and instruction set in effect.
std::string product_library();

}  // namespace terrace
