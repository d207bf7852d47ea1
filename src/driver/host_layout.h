// What a real driver does to the host's address space besides its allocations. It decides which
// gaps are left for these, and so the order of their addresses. Seen with strace on an H200, driver
// 580 (tools/device/host_layout.sh is a tidied form of what was run).
#pragma once

namespace tonnage::driver {

class HostRegions;

// At cuInit: a thread, the range for unified addresses, and the driver's own tables. Nothing of it
// costs memory.
void lay_out_host_at_init();
// Before the regions of a device's first context: a thread, tables, and a region of the driver's
// own, unless `regions` is null (the process has had another device's context before).
void lay_out_host_at_context(HostRegions* regions);

}  // namespace tonnage::driver
