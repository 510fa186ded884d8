// What the machine and the control group leave to this process.
#pragma once

#include <cstdint>
#include <optional>

namespace gem {

// Bytes that can be taken without pushing others out: the smaller of the kernel's estimate and the room under
// the control group's limit. Nothing where the system does not tell.
std::optional<std::uint64_t> available_memory();

// Resident bytes of this process (mapped file pages in use included) and their peak since start.
std::uint64_t resident_memory();
std::uint64_t peak_resident_memory();

}  // namespace gem
