//! A log in a file that does not grow without end.
//!
//! Standard output and standard error of the process are the file itself: what C code and forked
//! children write is in it, and so is the last line of a process that is killed. When the file is
//! large, it is renamed, and both go on in a new one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use treadle_reactor::thread;

/// Earlier files that are kept: `PATH.1` is the latest.
const KEPT: usize = 4;
/// How often the length is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Has what this process writes to standard output and standard error appended to a file from now on.
/// At about `longest` bytes it becomes `PATH.1`, and the one before `PATH.2`, up to `PATH.4`; what is
/// older is removed. A file that somebody else renames or removes is made anew.
///
/// # Errors
/// The file cannot be opened, or there is no thread to look after it.
pub fn to_file(path: &Path, longest: u64) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let file = open(&path)?;
    thread::start("treadle-log-file", move || watch(&path, file, longest))?;
    Ok(())
}

/// Opens it in the place of what the process writes to.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Arguments of tasks are in it.
    let file = options.create(true).append(true).mode(0o600).open(path)?;
    rustix::stdio::dup2_stdout(&file)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(file)
}

fn watch(path: &Path, mut file: File, longest: u64) {
    loop {
        std::thread::sleep(LOOK);
        let Ok(own) = file.metadata() else { continue };
        let at_path = fs::metadata(path).ok();
        let is_there = at_path.is_some_and(|at| (at.dev(), at.ino()) == (own.dev(), own.ino()));
        if is_there && own.len() <= longest {
            continue;
        }
        if is_there && rotate(path).is_err() {
            // The disk or the directory: what is there goes on being written.
            continue;
        }
        if let Ok(next) = open(path) {
            file = next;
        }
    }
}

fn rotate(path: &Path) -> io::Result<()> {
    let earlier = |number: usize| match number {
        0 => path.to_owned(),
        number => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        }
    };
    for number in (0..KEPT).rev() {
        match fs::rename(earlier(number), earlier(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_files_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for number in 0..KEPT + 3 {
            fs::write(&path, number.to_string()).unwrap();
            rotate(&path).unwrap();
            assert!(!path.exists());
        }
        let text = |number: usize| fs::read_to_string(format!("{}.{number}", path.display()));
        for number in 1..=KEPT {
            assert_eq!(text(number).unwrap(), (KEPT + 3 - number).to_string());
        }
        assert!(text(KEPT + 1).is_err());
    }
}
