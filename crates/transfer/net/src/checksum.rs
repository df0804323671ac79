//! CRC-32C of what is on the wire.

use treadle_guards::checks;

/// CRC-32C, as in iSCSI (RFC 3720).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    if !checks::are_computed() {
        return 0;
    }
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of bytes that are not in the cache, and will be needed in it: the kernel copies them next.
///
/// A core that only computes waits for memory half of the time. Asking for what comes a few pages
/// later makes it 1.4 times as fast (`docs/internals/transfer.md`).
pub(crate) fn crc32c_of_cold(bytes: &[u8]) -> u32 {
    if !checks::are_computed() {
        return 0;
    }
    const STEP: usize = 2 * 1024;
    const AHEAD: usize = 16 * 1024;
    let mut checksum = Checksum::new();
    for (index, step) in bytes.chunks(STEP).enumerate() {
        let ahead = index * STEP + AHEAD;
        prefetch(
            bytes
                .get(ahead..bytes.len().min(ahead + STEP))
                .unwrap_or_default(),
        );
        checksum.update(step);
    }
    checksum.finish()
}

/// Asks for bytes to be brought into the second-level cache.
fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 processor has it, and it changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// CRC-32C of bytes that come in pieces.
pub(crate) struct Checksum(crc_fast::Digest);

impl Checksum {
    pub(crate) fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if checks::are_computed() {
            self.0.update(bytes);
        }
    }

    pub(crate) fn finish(&self) -> u32 {
        match checks::are_computed() {
            true => self.0.finalize() as u32,
            false => 0,
        }
    }
}
