// Which tags were used in the two newest steps: each may be used once.
#pragma once

#include <cstdint>
#include <unordered_set>

namespace megatronapp::rdma {

constexpr int kStepShift = 48;
constexpr std::uint32_t kSteps = 4096;

inline std::uint32_t step_of(std::uint64_t tag) { return static_cast<std::uint32_t>(tag >> kStepShift) % kSteps; }

enum class Verdict { kNew, kDuplicate, kStale };

class StepWindow {
public:
    Verdict admit(std::uint64_t tag) {
        if (!started_) {  // a restarted run begins at any step
            started_ = true;
            newest_ = step_of(tag);
        }
        const std::uint32_t ahead = (step_of(tag) + kSteps - newest_) % kSteps;
        if (ahead != 0 && ahead < kSteps / 2) {
            advance(step_of(tag), ahead == 1);
        } else if (ahead != 0 && ahead != kSteps - 1) {
            return Verdict::kStale;
        }
        auto& used = step_of(tag) == newest_ ? current_ : previous_;
        return used.insert(tag).second ? Verdict::kNew : Verdict::kDuplicate;
    }

    // A message that was cancelled before it was matched never was.
    void forget(std::uint64_t tag) {
        current_.erase(tag);
        previous_.erase(tag);
    }

private:
    void advance(std::uint32_t step, bool by_one) {
        previous_.clear();
        if (by_one) {
            previous_.swap(current_);
        }
        current_.clear();
        newest_ = step;
    }

    bool started_ = false;
    std::uint32_t newest_ = 0;
    std::unordered_set<std::uint64_t> current_, previous_;
};

}  // namespace megatronapp::rdma
