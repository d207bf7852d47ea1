#include "vgpu/driver/shim_loader.h"

namespace tonnage::vgpu {
void load_shim() {}
}  // namespace tonnage::vgpu
