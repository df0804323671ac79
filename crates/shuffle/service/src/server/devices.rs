//! What the devices of a server's directories do, for its pages.

use std::fmt::Write as _;

use serde_json::{Value, json};
use treadle_shuffle_node::DeviceStats;
use treadle_volume::Limit;

/// What each device does, as lines for Prometheus. Its label is its first directory.
pub(super) fn metrics(devices: &[DeviceStats]) -> String {
    let seconds = |time: std::time::Duration| time.as_secs_f64();
    let of = |device: &DeviceStats| {
        let standing = &device.standing;
        [
            ("waiting", "gauge", standing.waiting as f64),
            (
                "read_latency_seconds",
                "gauge",
                seconds(standing.read_latency),
            ),
            ("read_bytes_per_second", "gauge", standing.read_rate as f64),
            (
                "write_bytes_per_second",
                "gauge",
                standing.write_rate as f64,
            ),
            ("operation_seconds", "gauge", seconds(standing.operation)),
            ("slow", "gauge", f64::from(u8::from(standing.is_slow))),
            ("full", "gauge", f64::from(u8::from(standing.is_full))),
            (
                "throttling",
                "gauge",
                f64::from(u8::from(standing.is_limiting)),
            ),
            ("failures_total", "counter", standing.failures as f64),
        ]
    };
    let all: Vec<_> = devices
        .iter()
        .map(|device| (name(device), of(device)))
        .collect();
    let mut text = String::new();
    for at in 0..all.first().map_or(0, |(_, values)| values.len()) {
        for (number, (device, values)) in all.iter().enumerate() {
            let (what, kind, value) = values[at];
            let what = format!("treadle_shuffle_device_{what}");
            if number == 0 {
                let _ = writeln!(text, "# TYPE {what} {kind}");
            }
            let _ = writeln!(text, "{what}{{directory=\"{device}\"}} {value}");
        }
    }
    text
}

/// The same, and what applications were given, for people and programs.
pub(super) fn state(devices: &[DeviceStats]) -> Value {
    let devices = devices.iter().map(|device| {
        let standing = &device.standing;
        let applications = standing.applications.iter().map(|(application, served)| {
            json!({
                "application": application.0,
                "requests": served.requests,
                "bytes": served.bytes,
                "cost_microseconds": served.cost,
                "waiting": served.waiting,
            })
        });
        json!({
            "directories": device.directories,
            "waiting": standing.waiting,
            "read_latency_seconds": standing.read_latency.as_secs_f64(),
            "read_bytes_per_second": standing.read_rate,
            "write_bytes_per_second": standing.write_rate,
            "operation_seconds": standing.operation.as_secs_f64(),
            "slow": standing.is_slow,
            "full": standing.is_full,
            "throttling": standing.is_limiting,
            "failures": standing.failures,
            "applications": applications.collect::<Vec<_>>(),
        })
    });
    devices.collect()
}

/// The value of a label.
fn name(device: &DeviceStats) -> String {
    let first = device.directories.first();
    let name = first.map_or_else(String::new, |path| path.display().to_string());
    name.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// What directories do at most, if a test says so: `DIRECTORY=BYTES:OPERATIONS` a second, separated by `;`.
pub(super) fn tested() -> Vec<Limit> {
    if !cfg!(feature = "testing") {
        return Vec::new();
    }
    let said = std::env::var("TREADLE_TESTING_SHUFFLE_DISKS").unwrap_or_default();
    said.split(';').filter_map(limit).collect()
}

fn limit(text: &str) -> Option<Limit> {
    let (directory, what) = text.rsplit_once('=')?;
    let (rate, operations) = what.split_once(':')?;
    Some(Limit {
        directory: directory.into(),
        rate: rate.parse().ok()?,
        operations: operations.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use treadle_shuffle::DeviceStanding;

    use super::*;

    #[test]
    fn each_metric_is_named_once_and_labels_are_quoted() {
        let device = |path: &str| DeviceStats {
            directories: vec![path.into()],
            standing: DeviceStanding::default(),
        };
        let text = metrics(&[device("/disk 1"), device("/a\"b\\c")]);
        assert_eq!(
            text.matches("# TYPE treadle_shuffle_device_slow gauge\n")
                .count(),
            1
        );
        assert!(text.contains("treadle_shuffle_device_slow{directory=\"/disk 1\"} 0\n"));
        assert!(text.contains("{directory=\"/a\\\"b\\\\c\"} 0\n"), "{text}");
        assert_eq!(text.lines().count(), 9 * 3);
        assert_eq!(metrics(&[]), "");
    }

    #[test]
    fn limits_of_tests_are_read() {
        let found = limit("/a=b/c=1000:20");
        let expected = Limit {
            directory: "/a=b/c".into(),
            rate: 1000,
            operations: 20,
        };
        assert_eq!(found, Some(expected));
        assert_eq!((limit(""), limit("/a=1")), (None, None));
    }
}
