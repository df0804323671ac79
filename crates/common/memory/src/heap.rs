//! The memory of the C allocator, and of the process.

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

/// Has all threads of the process that start from now on allocate from one heap.
///
/// glibc gives threads heaps of their own, and what was freed in one serves only those that allocate there.
/// Where threads take turns at the same work, each heap grows to what all of them need. With other C
/// libraries, this does nothing.
pub fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: always safe to call, by any thread; it changes which heap is used from now on.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Bytes of private memory of this process that are in use: what it shares with files and other
/// processes counts once for every process that maps it, so it does not count here. `None`: the system does
/// not say.
pub fn resident() -> Option<u64> {
    let (all, shared) = pages()?;
    Some(all.saturating_sub(shared))
}

/// Bytes of memory of this process that are in use, with what it shares: what the system shows as its resident
/// size. `None`: the system does not say.
pub fn occupied() -> Option<u64> {
    pages().map(|(all, _)| all)
}

/// Bytes of pages that are in memory, and of these the ones that are shared.
fn pages() -> Option<(u64, u64)> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().skip(1);
    let page = rustix::param::page_size() as u64;
    let mut next = || Some(pages.next()?.parse::<u64>().ok()? * page);
    Some((next()?, next()?))
}
