use rustix::io::Errno;

/// What can go wrong with memory. Lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// More than there is.
    #[error(
        "{len} bytes do not fit: {available} bytes of memory are available here. Use smaller \
         chunks, or raise the memory limit of the container."
    )]
    OutOfMemory {
        /// What was asked for.
        len: usize,
        /// What the machine and the cgroup had left.
        available: u64,
    },
    /// More than an address can express.
    #[error("{len} bytes are more than this machine can address")]
    TooLarge {
        /// What was asked for.
        len: usize,
    },
    /// Each segment has a descriptor, and those are few.
    #[error(
        "{most} shared segments exist, a quarter of the limit of open files. Raise it \
         (`ulimit -n`), or share fewer and larger arrays."
    )]
    TooManySegments {
        /// So many may exist.
        most: usize,
    },
    /// The kernel refused.
    #[error("{call} of {len} bytes: {errno}")]
    System {
        call: &'static str,
        /// Of so much.
        len: usize,
        /// Its answer.
        errno: Errno,
    },
    /// A descriptor that was received is not sealed shared memory: its owner could truncate it
    /// under its readers, which kills them.
    #[error("the descriptor cannot be mapped safely: {reason}. The peer is no Treadle sender.")]
    Unsafe {
        /// What is wrong.
        reason: &'static str,
    },
    /// A descriptor that was received is too short.
    #[error("bytes {offset}..+{length} were announced, but the shared memory has {size} bytes")]
    OutOfBounds {
        /// Where the announced range starts.
        offset: u64,
        length: u64,
        /// How much there is.
        size: u64,
    },
}

impl MemoryError {
    pub(crate) fn system(call: &'static str, len: usize) -> impl FnOnce(Errno) -> Self {
        move |errno| MemoryError::System { call, len, errno }
    }
}
