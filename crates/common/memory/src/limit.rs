//! How much memory this process may use.

use std::fs;
use std::path::{Path, PathBuf};

/// What this process may use at most, in bytes: the smallest limit of its control groups
/// (`memory.max` of cgroup v2, `memory.limit_in_bytes` of v1, up the hierarchy), or all of the
/// machine's memory.
pub fn memory_limit() -> u64 {
    groups()
        .iter()
        .filter_map(Group::limit)
        .fold(total(), u64::min)
}

/// What this process could still allocate now, in bytes: without page caches, which the kernel
/// gives up. An estimate: others allocate too.
#[cfg(target_os = "linux")]
pub(crate) fn available_memory() -> u64 {
    groups()
        .iter()
        .filter_map(Group::available)
        .fold(meminfo("MemAvailable:").unwrap_or(u64::MAX), u64::min)
}

fn total() -> u64 {
    meminfo("MemTotal:").unwrap_or_else(|| {
        // SAFETY: only reads.
        let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
        u64::try_from(pages).map_or(u64::MAX, |pages| {
            pages.saturating_mul(rustix::param::page_size() as u64)
        })
    })
}

fn meminfo(name: &str) -> Option<u64> {
    let kib = field(&fs::read_to_string("/proc/meminfo").ok()?, name)?;
    kib.checked_mul(1024)
}

/// The number after `name` in a file of lines like `name 12`.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text
        .lines()
        .map(str::split_ascii_whitespace)
        .find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    words.next()?.parse().ok()
}

fn groups() -> Vec<Group> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Group::of(&membership, Path::new("/sys/fs/cgroup"))
}

/// A control group that accounts for this process's memory. Missing files are no limits: a
/// container may see none of its host's groups.
struct Group {
    path: PathBuf,
    files: &'static Files,
}

#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "only segments ask what is available")
)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Field of `memory.stat`: pages of files that nobody used lately.
    reclaimable: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

const V2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file",
};

impl Group {
    /// The groups in `membership`, which is in the format of `/proc/self/cgroup`, with those
    /// above them, mounted below `mount`.
    fn of(membership: &str, mount: &Path) -> Vec<Self> {
        let mut groups = Vec::new();
        for line in membership.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let (root, files) = if controllers.is_empty() {
                (mount.to_path_buf(), &V2)
            } else if controllers.split(',').any(|name| name == "memory") {
                (mount.join("memory"), &V1)
            } else {
                continue;
            };
            let leaf = root.join(path.trim_start_matches('/'));
            let within = leaf.ancestors().take_while(|path| path.starts_with(&root));
            groups.extend(within.map(|path| Group {
                path: path.to_path_buf(),
                files,
            }));
        }
        groups
    }

    fn number(&self, file: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path.join(file)).ok()?;
        text.trim().parse().ok()
    }

    /// `None` where there is no limit: v2 says `max`, v1 a number beyond any machine's memory.
    fn limit(&self) -> Option<u64> {
        self.number(self.files.limit)
            .filter(|&limit| limit < 1 << 62)
    }

    #[cfg(target_os = "linux")]
    fn available(&self) -> Option<u64> {
        let limit = self.limit()?;
        let usage = self.number(self.files.usage)?;
        let statistics = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let reclaimable = field(&statistics, self.files.reclaimable).unwrap_or(0);
        Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hierarchy of control groups, removed when dropped.
    struct Mount(PathBuf);

    impl Mount {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let mount = format!("treadle-memory-{name}-{}", std::process::id());
            let mount = std::env::temp_dir().join(mount);
            for (path, text) in files {
                let path = mount.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Mount(mount)
        }

        fn limits(&self, membership: &str) -> Vec<u64> {
            let groups = Group::of(membership, &self.0);
            groups.iter().filter_map(Group::limit).collect()
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn limits_of_version_2_up_the_hierarchy() {
        let mount = Mount::new(
            "v2",
            &[
                ("a/memory.max", "3000\n"),
                ("a/b/memory.max", "max\n"),
                ("a/b/c/memory.max", "5000\n"),
                ("other/memory.max", "1\n"),
            ],
        );
        assert_eq!(mount.limits("0::/a/b/c\n"), [5000, 3000]);
        assert_eq!(mount.limits("0::/a/b\n"), [3000]);
        // Inside a container the path is its host's, and the mount is the container's own.
        assert_eq!(mount.limits("0::/\n"), [0; 0]);
        assert_eq!(mount.limits("0::/a/unknown\n"), [3000]);
    }

    #[test]
    fn limits_of_version_1() {
        let mount = Mount::new(
            "v1",
            &[
                ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/a/memory.limit_in_bytes", "4096\n"),
                ("a/memory.max", "1\n"),
            ],
        );
        let membership = "9:cpu,cpuacct:/a\n4:hugetlb,memory:/a\n2:pids:/a\nnonsense\n";
        assert_eq!(mount.limits(membership), [4096]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn page_caches_are_available() {
        let mount = Mount::new(
            "stat",
            &[
                ("a/memory.max", "1000\n"),
                ("a/memory.current", "900\n"),
                ("a/memory.stat", "file 500\ninactive_file 300\nanon 1\n"),
            ],
        );
        let available = |mount: &Mount| {
            let groups = Group::of("0::/a\n", &mount.0);
            groups.iter().find_map(Group::available)
        };
        assert_eq!(available(&mount), Some(400));
        fs::write(mount.0.join("a/memory.current"), "2000\n").unwrap();
        assert_eq!(available(&mount), Some(0));
        fs::write(mount.0.join("a/memory.max"), "max\n").unwrap();
        assert_eq!(available(&mount), None);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "MemTotal:       24 kB\nMemAvailable:   7 kB\nEmpty\n";
        assert_eq!(field(text, "MemAvailable:"), Some(7));
        assert_eq!(field(text, "Mem"), None);
        assert_eq!(field(text, "Empty"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        let limit = memory_limit();
        assert!(limit > 1 << 20 && limit <= total(), "{limit}");
    }
}
