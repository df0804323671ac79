//! Which devices directories are on.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{major, minor};

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its directories: their numbers.
    pub directories: Vec<usize>,
    /// Whether it takes time to move from one place to another. `false` if the system does not say.
    pub is_rotational: bool,
}

/// The number of the device of a directory, and whether it is rotational.
pub(crate) fn device_of(directory: &Path) -> (Option<u64>, bool) {
    let Ok(device) = directory.metadata().map(|found| found.dev()) else {
        return (None, false);
    };
    let place = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    // A partition says nothing of it: its disk does.
    let places = ["queue/rotational", "../queue/rotational"];
    let said = places
        .iter()
        .find_map(|name| fs::read_to_string(Path::new(&place).join(name)).ok());
    (Some(device), said.is_some_and(|said| said.trim() == "1"))
}
