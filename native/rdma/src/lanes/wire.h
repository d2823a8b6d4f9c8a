// The stream socket that two ranks keep: liveness, the cores' messages where no memory is shared, and the TCP lane.
//
// What is to be sent is written as far as the socket takes it, frame by frame, and goes on at the next poll. A
// tensor's bytes are sent only once both ends have matched it, so that they always have a place; those of a receive
// that has ended meanwhile are read and dropped. The end of the stream without the peer's close is its death: the
// kernel tells it at once, also after kill -9.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "lanes/lane.h"
#include "lanes/send_queue.h"

namespace megatronapp::rdma {

class Wire final : public Lane {
public:
    // Connected, and the peer's identity proved. The descriptor stays the caller's.
    Wire(Matcher& core, int descriptor, bool checksum, std::size_t most_bytes);
    ~Wire() override { close({}); }

    const char* name() const override { return "tcp"; }
    void start(const OperationPtr& send, const Message& ready) override;
    bool progress() override;
    Stop stop(const OperationPtr& send) override;

    void post(const Message& message);
    int descriptor() const { return descriptor_; }
    bool has_output() const { return !mail_.empty() || !sending_.empty() || left_ != 0; }
    // When bytes last came in.
    std::int64_t heard_ns() const { return heard_ns_; }
    bool open() const { return descriptor_ >= 0; }
    // Why it is not open any more.
    const std::string& reason() const { return reason_; }
    void close(std::string reason);

private:
    bool write_some();
    bool next_frame();
    void frame_written();
    bool read_some();
    void frame_read();
    std::size_t take(const char* from, std::size_t bytes);
    void header_read();

    Matcher& core_;
    int descriptor_;
    bool checksum_;
    std::size_t frame_bytes_;  // at most
    std::string reason_;
    std::int64_t heard_ns_;

    // Going out: one frame at a time, the core's messages before data.
    std::deque<Message> mail_;
    SendQueue sending_;
    OperationPtr moving_;     // of which a frame is being written
    bool stopping_ = false;   // it is to be taken back after that
    Message out_;
    std::size_t left_ = 0;  // bytes of the frame that are not written
    std::size_t payload_ = 0;
    const char* payload_data_ = nullptr;

    // Coming in.
    Message in_;
    std::size_t header_have_ = 0;
    std::uint64_t expected_ = 0;  // bytes of the frame's payload that have not come
    OperationPtr receiving_;
    std::vector<char> buffer_;
};

}  // namespace megatronapp::rdma
