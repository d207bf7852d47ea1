// What a real driver reserves in the host's address space besides its allocations. This decides
// which gaps are left for the allocations, and so the order of their addresses. Source: system
// calls, shown by strace on an H200 with driver 580 (tools/device/host_layout.sh is a cleaned-up
// form).
#pragma once

namespace tonnage::driver {

class HostRegions;

// At cuInit: a thread, the range for unified addresses, and the driver's own tables. It takes no
// memory.
void lay_out_host_at_init();
// Before the regions of a device's first context: a thread, tables, and a region of the driver's
// own, unless `regions` is null (the process has had another device's context before).
void lay_out_host_at_context(HostRegions* regions);

}  // namespace tonnage::driver
