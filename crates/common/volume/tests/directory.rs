//! Directories of processes: what others left is removed, and nothing else.

mod common;

use std::fs::{self, File, FileTimes};
use std::time::{Duration, SystemTime};

use common::eventually;
use treadle_volume::{Directory, DirectoryKind};

#[test]
fn only_what_is_named_as_ours_is_removed() {
    let base = tempfile::tempdir().unwrap();
    let path = |name: &str| base.path().join(name);
    let kept = [
        "treadle-data",
        "treadle-1-0123456789abcdeg",
        "treadle-x-0123456789abcdef",
        "treadle-1-0123456789abcdef.old",
        "treadle-7-0123456789abcdef.new",
    ];
    for name in kept {
        fs::create_dir(path(name)).unwrap();
    }
    let link = path("treadle-2-0123456789abcdef");
    std::os::unix::fs::symlink(path("treadle-data"), &link).unwrap();
    fs::write(path("treadle-data").join("precious"), "").unwrap();
    let file = path("treadle-3-0123456789abcdef");
    fs::write(&file, "").unwrap();

    let old = path("treadle-8-0123456789abcdef.new");
    let interrupted = path("treadle-9-0123456789abcdef");
    for name in [&old, &interrupted] {
        fs::create_dir(name).unwrap();
    }
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    File::open(&old)
        .unwrap()
        .set_times(FileTimes::new().set_modified(yesterday))
        .unwrap();

    let _directory = Directory::create(base.path(), DirectoryKind::Volume).unwrap();
    for name in kept {
        assert!(path(name).exists(), "{name}");
    }
    assert!(path("treadle-data").join("precious").exists());
    assert!(link.is_symlink() && file.exists());
    assert!(!old.exists() && !interrupted.exists());
}

#[test]
fn a_cluster_that_is_gone_waits_for_its_workers() {
    let base = tempfile::tempdir().unwrap();
    let cluster = base.path().join("treadle-cluster-1-0123456789abcdef");
    let place = cluster.join("worker-0");
    fs::create_dir_all(&place).unwrap();
    fs::write(cluster.join("lock"), "").unwrap();
    let worker = Directory::create(&place, DirectoryKind::Worker).unwrap();
    let next = Directory::create(base.path(), DirectoryKind::Cluster).unwrap();
    assert!(worker.path().exists());
    next.remove();
    drop(worker);
    // Another test may fork, and then the child has a copy of the worker's lock for a moment.
    eventually("removed", || {
        let next = Directory::create(base.path(), DirectoryKind::Cluster).unwrap();
        next.remove();
        !cluster.exists()
    });
}

#[test]
fn a_forked_child_does_not_keep_the_lock() {
    let base = tempfile::tempdir().unwrap();
    let directory = Directory::create(base.path(), DirectoryKind::Worker).unwrap();
    let path = directory.path().to_path_buf();
    // SAFETY: the child waits for its end without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: waits, and ends the process.
        unsafe {
            libc::pause();
            libc::_exit(0);
        }
    }
    assert!(child > 0);
    drop(directory);
    // Another test may start a process, which has copies of everything for a moment.
    let gone = std::panic::catch_unwind(|| {
        eventually("removed", || {
            drop(Directory::create(base.path(), DirectoryKind::Worker).unwrap());
            !path.exists()
        });
    });
    // SAFETY: the child that was made above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    gone.unwrap();
}
