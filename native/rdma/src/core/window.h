// Which tags were used in the newest rounds: each may be used once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_set>

namespace megatronapp::rdma {

constexpr int kRoundShift = 48;
constexpr std::uint32_t kRounds = 4096;
constexpr std::uint32_t kMaxOpenRounds = 1024;  // rounds are compared modulo kRounds

inline std::uint32_t round_of(std::uint64_t tag) { return static_cast<std::uint32_t>(tag >> kRoundShift) % kRounds; }

enum class Verdict { kNew, kDuplicate, kStale };

class RoundWindow {
public:
    explicit RoundWindow(std::uint32_t open_rounds) : used_(std::clamp(open_rounds, 1u, kMaxOpenRounds)) {}

    Verdict admit(std::uint64_t tag) {
        if (!started_) {  // a restarted run begins at any round
            started_ = true;
            newest_ = round_of(tag);
        }
        const std::uint32_t ahead = (round_of(tag) + kRounds - newest_) % kRounds;
        if (ahead != 0 && ahead < kRounds / 2) {
            advance(ahead);
        }
        std::unordered_set<std::uint64_t>* used = of(tag);
        if (used == nullptr) {
            return Verdict::kStale;
        }
        return used->insert(tag).second ? Verdict::kNew : Verdict::kDuplicate;
    }

    bool used(std::uint64_t tag) {
        const auto* used = started_ ? of(tag) : nullptr;
        return used != nullptr && used->count(tag) != 0;
    }

    // A message that was cancelled never was.
    void forget(std::uint64_t tag) {
        if (auto* used = of(tag)) {
            used->erase(tag);
        }
    }

private:
    // Null: not one of the open rounds.
    std::unordered_set<std::uint64_t>* of(std::uint64_t tag) {
        const std::uint32_t behind = (newest_ + kRounds - round_of(tag)) % kRounds;
        return behind < used_.size() ? &used_[behind] : nullptr;
    }

    void advance(std::uint32_t rounds) {
        for (std::uint32_t i = 0; i < std::min<std::size_t>(rounds, used_.size()); ++i) {
            used_.pop_back();
            used_.emplace_front();
        }
        newest_ = (newest_ + rounds) % kRounds;
    }

    bool started_ = false;
    std::uint32_t newest_ = 0;
    std::deque<std::unordered_set<std::uint64_t>> used_;  // the newest round's first
};

}  // namespace megatronapp::rdma
