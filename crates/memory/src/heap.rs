//! The memory of the C allocator.

/// Gives back to the system what is free in the C allocator's heaps.
///
/// glibc keeps what is freed, up to the highest address that is still in use: where many threads
/// allocate and free arrays of some hundred kilobytes, that can be more than is in use. This takes
/// the time of unmapping the free pages, during which other threads of the process may have to wait
/// to allocate. With other C libraries, it does nothing.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: always safe to call, by any thread; it touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
