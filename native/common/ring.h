// A ring of records that its writer never waits on: what nobody has read in time is overwritten, and the numbers of the
// records tell the reader how many (docs/agent.md). A segment has one of small records and may have one of bulk frames
// (frame.h); they differ in size alone. The memory is the segment's: of what the writer claims, only it knows until it
// is published, and a reader keeps nothing but copies.
//
// A reader can't hold the writer up, so it must be able to tell that what it copied was overwritten meanwhile. That is
// what `tail` is for: it moves past the bytes before the first of them changes. Hence the fence between the two, a full
// one: a release store of `tail` alone would let the bytes go first, and large copies bypass the cache by stores that
// even x86 does not keep in order.
#pragma once

#include <cstring>
#include <stdexcept>

#include "common/layout.h"

namespace megatronapp::common {

class RingWriter {
public:
    RingWriter(RingHeader& header, char* data, std::size_t bytes) : header_(header), data_(data), bytes_(bytes) {}

    // What a record may hold after its header.
    std::size_t most_payload() const { return bytes_ / 8 - sizeof(RecordHeader); }

    // Room for a record's payload, a multiple of 8 bytes, at an address of that alignment; to be filled before
    // `publish`. Throws std::length_error beyond `most_payload`.
    char* claim(RecordKind kind, std::size_t payload) {
        if (payload % 8 != 0 || payload > most_payload()) {
            throw std::length_error("a record's payload must be a multiple of 8 bytes, below an eighth of the ring");
        }
        const std::size_t record = sizeof(RecordHeader) + payload;
        const std::size_t left = bytes_ - place(head_);
        const std::size_t filling = record > left ? left : 0;
        next_ = head_ + filling + record;
        give_up(next_);
        if (filling != 0) {
            const RecordHeader header{static_cast<std::uint32_t>(filling), 0, 0, 0};
            std::memcpy(data_ + place(head_), &header, kFillingBytes);
        }
        char* begin = data_ + place(head_ + filling);
        const RecordHeader header{static_cast<std::uint32_t>(record), static_cast<std::uint16_t>(kind), 0, ++number_};
        std::memcpy(begin, &header, sizeof header);
        return begin + sizeof header;
    }

    void publish() {
        head_ = next_;
        header_.head.store(head_, std::memory_order_release);
    }

private:
    std::size_t place(std::uint64_t position) const { return static_cast<std::size_t>(position & (bytes_ - 1)); }

    // Moves the tail, record by record, so that what lies between it and `next` fits.
    void give_up(std::uint64_t next) {
        const std::uint64_t before = tail_;
        while (next - tail_ > bytes_) {
            std::uint32_t record;
            std::memcpy(&record, data_ + place(tail_), sizeof record);
            // Memory that another process can write: a size that can't be ends the walk, not this process.
            const bool sound = record >= kFillingBytes && record % 8 == 0 && record <= head_ - tail_;
            tail_ = sound ? tail_ + record : head_;
        }
        if (tail_ != before) {
            header_.tail.store(tail_, std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_seq_cst);
        }
    }

    RingHeader& header_;
    char* data_;
    std::size_t bytes_;
    std::uint64_t head_ = 0, tail_ = 0, next_ = 0, number_ = 0;
};

}  // namespace megatronapp::common
