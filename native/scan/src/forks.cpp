#include "forks.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "recorder.h"

namespace megatronapp::scan {

namespace {

// All recorders of the process. Never destroyed: a fork may come late.
struct Registry {
    std::mutex mutex;
    std::vector<Recorder*> recorders;
};

Registry& registry() {
    static Registry* const all = new Registry;
    return *all;
}

void before_fork() {
    registry().mutex.lock();
    for (Recorder* recorder : registry().recorders) {
        recorder->before_fork();
    }
}

void after_fork_in_parent() {
    for (Recorder* recorder : registry().recorders) {
        recorder->after_fork_in_parent();
    }
    registry().mutex.unlock();
}

void after_fork_in_child() {
    for (Recorder* recorder : registry().recorders) {
        recorder->after_fork_in_child();
    }
    registry().mutex.unlock();
}

}  // namespace

void enter_forks(Recorder& recorder) {
    static const int failed = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    if (failed != 0) {
        throw std::runtime_error("no memory for what a fork needs to know");
    }
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().recorders.push_back(&recorder);
}

void leave_forks(Recorder& recorder) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    auto& all = registry().recorders;
    all.erase(std::remove(all.begin(), all.end(), &recorder), all.end());
}

}  // namespace megatronapp::scan
