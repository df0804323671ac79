//! All tests of this crate once more, where the kernel refuses what older ones do not know.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MARK: &str = "TREADLE_TEST_OLDER_KERNEL";

/// `PAGEMAP_SCAN`, of Linux 6.7.
const PAGEMAP_SCAN: u32 = 0xc060_6610;

/// Whether this process has such a kernel.
pub(crate) fn simulated() -> bool {
    std::env::var_os(MARK).is_some()
}

#[test]
fn they_do_the_same_by_other_means() {
    let mut tests = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "older_kernels::tests", "--ignored"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(300);
    let status = loop {
        match tests.try_wait().unwrap() {
            Some(status) => break status.success(),
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            None => {
                tests.kill().unwrap();
                break tests.wait().unwrap().success();
            }
        }
    };
    let mut report = String::new();
    let mut stdout = tests.stdout.take().unwrap();
    stdout.read_to_string(&mut report).unwrap();
    assert!(status, "{report}");
    assert!(
        report.contains("the_pages_of_a_large_segment_stay_mapped ... ok"),
        "{report}"
    );
}

/// Not a test: becomes all other tests, in a process of its own.
#[test]
#[ignore = "the other process of the test above"]
fn tests() {
    refuse().unwrap();
    let mut tests = Command::new(std::env::current_exe().unwrap());
    panic!(
        "{}",
        tests
            .args(["--skip", "older_kernels"])
            .env(MARK, "1")
            .exec()
    );
}

/// Refuses `MREMAP_DONTUNMAP` and `PAGEMAP_SCAN` from now on, to this thread and what it becomes.
fn refuse() -> std::io::Result<()> {
    // Offsets in `struct seccomp_data`; of the arguments, the lower half (little endian).
    const NUMBER: u32 = 0;
    const fn argument(index: u32) -> u32 {
        16 + 8 * index
    }
    const fn statement(code: u32, k: u32) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        }
    }
    const fn skip_unless(test: u32, k: u32, otherwise: u8) -> libc::sock_filter {
        libc::sock_filter {
            jf: otherwise,
            ..statement(libc::BPF_JMP | test | libc::BPF_K, k)
        }
    }
    const fn load(offset: u32) -> libc::sock_filter {
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
    }
    const fn fail(errno: i32) -> libc::sock_filter {
        let action = libc::SECCOMP_RET_ERRNO | errno as u32;
        statement(libc::BPF_RET | libc::BPF_K, action)
    }
    let mut filter = [
        load(NUMBER),
        skip_unless(libc::BPF_JEQ, libc::SYS_mremap as u32, 3),
        load(argument(3)),
        skip_unless(libc::BPF_JSET, libc::MREMAP_DONTUNMAP as u32, 5),
        fail(libc::EINVAL),
        skip_unless(libc::BPF_JEQ, libc::SYS_ioctl as u32, 3),
        load(argument(1)),
        skip_unless(libc::BPF_JEQ, PAGEMAP_SCAN, 1),
        fail(libc::ENOTTY),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its statements live during the calls, which copy them.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) != 0
    };
    if refused {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
