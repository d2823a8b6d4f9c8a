// Which tags were used in the two newest rounds: each may be used once.
#pragma once

#include <cstdint>
#include <unordered_set>

namespace megatronapp::rdma {

constexpr int kRoundShift = 48;
constexpr std::uint32_t kRounds = 4096;

inline std::uint32_t round_of(std::uint64_t tag) { return static_cast<std::uint32_t>(tag >> kRoundShift) % kRounds; }

enum class Verdict { kNew, kDuplicate, kStale };

class RoundWindow {
public:
    Verdict admit(std::uint64_t tag) {
        if (!started_) {  // a restarted run begins at any round
            started_ = true;
            newest_ = round_of(tag);
        }
        const std::uint32_t ahead = (round_of(tag) + kRounds - newest_) % kRounds;
        if (ahead != 0 && ahead < kRounds / 2) {
            advance(round_of(tag), ahead == 1);
        } else if (ahead != 0 && ahead != kRounds - 1) {
            return Verdict::kStale;
        }
        auto& used = round_of(tag) == newest_ ? current_ : previous_;
        return used.insert(tag).second ? Verdict::kNew : Verdict::kDuplicate;
    }

    // A message that was cancelled before it was matched never was.
    void forget(std::uint64_t tag) {
        current_.erase(tag);
        previous_.erase(tag);
    }

private:
    void advance(std::uint32_t round, bool by_one) {
        previous_.clear();
        if (by_one) {
            previous_.swap(current_);
        }
        current_.clear();
        newest_ = round;
    }

    bool started_ = false;
    std::uint32_t newest_ = 0;
    std::unordered_set<std::uint64_t> current_, previous_;
};

}  // namespace megatronapp::rdma
