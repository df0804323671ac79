//! A file system that is soon full.

use std::path::Path;
use std::process::Command;

/// A file system of one megabyte, while it lives.
pub(crate) struct Tiny(tempfile::TempDir);

impl Tiny {
    /// None where mounting is not permitted.
    pub(crate) fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(directory.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Tiny(directory)),
            _ => {
                eprintln!("skipped: mounting is not permitted here");
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).output();
    }
}
