// Removes secrets from command lines, because a record may be sent to other people.
//
// It runs inside the user's processes, with the writer. So it allocates nothing, and needs only the
// C library.
#pragma once

#include <cstddef>

namespace tonnage::record {

// Hides secrets in `n` bytes of arguments, each ended by a zero byte, in place. A secret's first
// characters become "***" (fewer if it is shorter) and the rest goes. Returns the bytes that are
// left. Secrets are
//  - what is given to a name that says so (token, password, api-key, HF_TOKEN, hub.access_token,
//    "Authorization: …"), after `=` or `:` or as the next argument,
//  - user names and passwords in addresses (https://user:password@host),
//  - words that are made like the keys of well-known services (hf_…, ghp_…, AKIA…).
size_t hide_secrets(char* arguments, size_t n);

}  // namespace tonnage::record
