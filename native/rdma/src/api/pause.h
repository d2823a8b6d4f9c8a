#pragma once

namespace megatronapp::rdma {

// A fraction of a microsecond, in which the core's other thread and the cache line's owner get on.
inline void pause_briefly() {
    constexpr int kPauses = 32;
    for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

}  // namespace megatronapp::rdma
