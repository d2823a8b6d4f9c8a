// What is recorded between two ends of steps.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/layout.h"
#include "cuda.h"

namespace megatronapp::scan {

// Counts all marks of a recorder, from 0.
using MarkId = std::int64_t;
constexpr MarkId kNoMark = -1;

struct Mark {
    std::int64_t host_ns;
    std::int64_t cpu_ns;
    Event event;  // null: a mark of the host
    Stream stream;
};

struct Row {
    std::uint8_t name;
    std::uint8_t blocked;
    std::uint8_t stream;
    std::int16_t chunk;
    std::int16_t layer;
    std::int32_t microbatch;
    std::int32_t peer;
    std::uint32_t communicator;
    std::uint32_t first;
    std::int64_t sequence;
    std::int64_t bytes;
    std::int64_t tokens;
    std::int64_t length_squares;
    std::int64_t message;
    std::uint32_t issue, begin, end;  // marks of the same chunk
};

struct Chunk {
    MarkId first_mark = 0;
    std::vector<Mark> marks;
    std::vector<Row> rows;
    // The newest event of each stream: the device passes a stream's events in order.
    std::vector<std::pair<Stream, Event>> newest;
    // Set when it is sealed; rows and reference are the resolver's to fill in.
    common::StepEnd end{};

    bool holds(MarkId mark) const {
        return mark >= first_mark && mark < first_mark + static_cast<MarkId>(marks.size());
    }
    const Mark& at(MarkId mark) const { return marks[static_cast<std::size_t>(mark - first_mark)]; }
};

constexpr std::size_t kColumns = 20;
constexpr std::array<const char*, kColumns> kColumnNames = {
    "name",   "first",          "blocked", "microbatch", "chunk", "layer", "communicator", "peer", "sequence", "bytes",
    "tokens", "length_squares", "stream",  "message",    "issue", "begin", "end",          "cpu",  "enqueue",  "behind"};

}  // namespace megatronapp::scan
