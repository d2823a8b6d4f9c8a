#include "lanes/segment.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace megatronapp::rdma {

namespace {

std::system_error failure(int number, const char* what) {
    return std::system_error(number, std::generic_category(), what);
}

}  // namespace

int Segment::make() {
    const int descriptor = memfd_create("megatronapp-rdma", MFD_CLOEXEC);
    if (descriptor < 0) {
        throw failure(errno, "can't make shared memory");
    }
    // Taken now: memory that is missing later would end the process with SIGBUS.
    const int number = posix_fallocate(descriptor, 0, sizeof(SegmentLayout));
    if (number != 0) {
        close(descriptor);
        throw failure(number, "no memory for shared memory (5 MiB a peer; raise the memory or file size limit)");
    }
    return descriptor;
}

Segment::Segment(int descriptor) {
    struct stat found {};
    if (fstat(descriptor, &found) != 0) {
        throw failure(errno, "the shared memory's descriptor");
    }
    if (static_cast<std::size_t>(found.st_size) < sizeof(SegmentLayout)) {
        throw failure(EINVAL, "the shared memory is too small");
    }
    void* mapped =
        mmap(nullptr, sizeof(SegmentLayout), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (mapped == MAP_FAILED) {
        throw failure(errno, "can't map shared memory");
    }
    madvise(mapped, sizeof(SegmentLayout), MADV_DONTFORK);
    layout_ = static_cast<SegmentLayout*>(mapped);
}

Segment::~Segment() { munmap(layout_, sizeof(SegmentLayout)); }

}  // namespace megatronapp::rdma
