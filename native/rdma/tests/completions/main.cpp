// What has ended and what becomes of it: operations that are waited for in the order in which they ended, in the opposite
// one, or told.
//
//     completions COUNT
//
// Prints how many are left to be told after each; how often looking for what nobody announces comes in a second of
// idling, after 2 ms, 6 ms, 60 ms and a second without movement; and last of how many streams that have waited, one after
// the other for so many messages, is known.
#include <cstdio>
#include <cstdlib>

#include "core/completions.h"
#include "core/pace.h"
#include "lanes/stream_waits.h"

using namespace megatronapp::rdma;

namespace {

std::vector<OperationPtr> end(Completions& completions, long count) {
    std::vector<OperationPtr> ended;
    for (long i = 0; i < count; ++i) {
        ended.push_back(std::make_shared<Operation>());
        completions.add(ended.back());
    }
    return ended;
}

}  // namespace

int main(int, char** arguments) {
    const long count = std::atol(arguments[1]);
    Completions completions;
    std::vector<OperationPtr> ended = end(completions, count);
    for (long i = 0; i + 2 < count; ++i) {
        completions.forget(ended[static_cast<std::size_t>(i)]);
        completions.forget(ended[static_cast<std::size_t>(i)]);  // again: nothing happens
    }
    std::printf("%zu\n", completions.drain().size());
    completions.forget(ended.back());  // was told
    ended = end(completions, count);
    for (long i = count - 1; i > 2; --i) {
        completions.forget(ended[static_cast<std::size_t>(i)]);
    }
    std::printf("%zu\n", completions.drain().size());
    std::printf("%zu\n", completions.drain().size());
    for (const std::int64_t idle_ns : {2'000'000, 6'000'000, 60'000'000, 1'000'000'000}) {
        std::printf("%lld\n", static_cast<long long>(pause_between_looks_ns(idle_ns)));
    }
    StreamWaits waits;
    std::atomic<std::uint32_t> word{0};
    for (std::uint32_t i = 1; i <= 1000; ++i) {
        waits.add(Flag{&word, 0, i});
        word = i;
    }
    std::printf("%zu\n", waits.size());
}
