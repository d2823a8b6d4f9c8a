// Streams that wait for what this host ends.
//
// While one does, the program may be in the driver for that very stream: it loads a kernel, or takes new memory. The
// driver then takes no call of another thread before the stream goes on. A progress thread that calls it would be kept
// there, and with it what the stream waits for. So the progress thread leaves what nobody's stream waits for until no
// stream waits; threads of the program that wait for it do it themselves: they are not in the driver.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lanes/stream_flags.h"

namespace megatronapp::rdma {

// Of this thread; the engine says it of its own.
inline thread_local bool is_progress_thread = false;

// Of all peers of an engine, under its lock.
class StreamWaits {
public:
    void add(const Flag& flag) {
        drop_reached();  // here, too: a program all of whose messages streams wait for asks for nothing else
        flags_.push_back(flag);
    }
    // Whether a call of the driver may not come back before this thread has done something else.
    bool driver_may_block() {
        drop_reached();
        return is_progress_thread && !flags_.empty();
    }
    std::size_t size() const { return flags_.size(); }

private:
    void drop_reached() { flags_.erase(std::remove_if(flags_.begin(), flags_.end(), reached), flags_.end()); }

    std::vector<Flag> flags_;  // the memory of flags is never given up
};

}  // namespace megatronapp::rdma
