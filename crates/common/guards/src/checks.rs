//! Whether checksums and digests of data are computed. They are, unless a measurement of what they cost
//! says no: in a build for tests (the feature `testing`), for a whole process, and for all processes that
//! talk to each other.

#[cfg(not(feature = "testing"))]
/// Whether they are.
#[inline(always)]
pub const fn are_computed() -> bool {
    true
}

#[cfg(feature = "testing")]
pub use switch::{are_computed, omit};

#[cfg(feature = "testing")]
mod switch {
    use core::sync::atomic::{AtomicBool, Ordering};

    static OMITTED: AtomicBool = AtomicBool::new(false);

    /// Whether they are.
    #[inline(always)]
    pub fn are_computed() -> bool {
        !OMITTED.load(Ordering::Relaxed)
    }

    /// From now on they are not, in this process.
    pub fn omit() {
        OMITTED.store(true, Ordering::Relaxed);
    }
}
