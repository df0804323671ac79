//! What the numbers prove: a rule each. A rule names what it saw, and where to look.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::overview::HistoryRow;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Work is lost, or does not go on.
    Bad,
    /// It takes longer than it had to.
    Warn,
    /// Worth knowing.
    Note,
}

/// Where to look.
#[derive(Clone, PartialEq, Eq, Default, Debug, serde::Serialize)]
pub struct Where {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The name of a shuffle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<String>,
    /// The value of the task.
    #[serde(skip)]
    pub longest: Option<u64>,
    /// Its key, as far as it was kept: whoever asked fills it in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What is proved.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Verdict {
    pub rule: &'static str,
    pub severity: Severity,
    pub text: String,
    pub view: &'static str,
    #[serde(rename = "where")]
    pub place: Where,
    /// When the rule spoke of this first, and last, in nanoseconds: whoever remembers fills it in.
    pub first: u64,
    pub last: u64,
    /// The larger, the worse.
    #[serde(skip)]
    pub weight: u64,
}

/// Rules that speak of one group, worker or shuffle among others. The others speak of the whole cluster.
const OF_ONE: [&str; 5] = [
    "skew",
    "skewed-shuffle",
    "slow-worker",
    "lock-held",
    "short-tasks",
];

impl Verdict {
    /// Whether another one is of the same rule, about the same.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        let same = |one: &Where, other: &Where| {
            (one.group, one.worker, &one.shuffle) == (other.group, other.worker, &other.shuffle)
        };
        self.rule == other.rule && (!OF_ONE.contains(&self.rule) || same(&self.place, &other.place))
    }

    fn weighs(self, weight: u64) -> Self {
        Self { weight, ..self }
    }
}

/// A group, as rules see it. Times are seconds.
#[derive(Clone, Debug)]
pub struct GroupFacts {
    pub id: u32,
    pub name: String,
    pub runs: u64,
    pub failed: u64,
    pub seconds: f64,
    pub mean: f64,
    pub median: f64,
    pub max: f64,
    /// From the beginning of the first to the end of the last.
    pub extent: f64,
    /// The value of the task that took longest.
    pub longest: u64,
    /// How many runs took about as long.
    pub long: u64,
}

/// A worker, as rules see it.
#[derive(Clone, Debug)]
pub struct WorkerFacts {
    pub id: u32,
    pub name: String,
    pub status: &'static str,
    /// Why it is lost, unless it left as it should.
    pub lost: Option<String>,
    pub managed: u64,
    pub process: u64,
    pub memory: u64,
    /// Tasks that it ran, how long they took, and how long they would have taken if each had taken what
    /// its group takes at the others.
    pub runs: u64,
    pub seconds: f64,
    pub expected: f64,
    /// Its threads, how many of them ran tasks in the last ten seconds, and how many processors they used.
    pub threads: u32,
    pub busy: f64,
    pub processors: f64,
}

/// The cluster, as rules see it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub groups: Vec<GroupFacts>,
    pub workers: Vec<WorkerFacts>,
    /// Of the last minute.
    pub tasks: u64,
    pub busy_seconds: f64,
    pub fetch_seconds: f64,
    pub fetched: u64,
    pub spilled: u64,
    /// Threads of the workers that are there.
    pub threads: u32,
    /// Snapshots of the last minute; those within seconds in which tasks ended; those of them with nothing
    /// to do beyond what runs; those of all in which tasks waited for few others.
    pub snapshots: u64,
    pub looks: u64,
    pub starved: u64,
    pub narrow: u64,
    /// Tasks that wait for inputs now.
    pub waiting: u64,
    /// Sent to workers now.
    pub assigned: u64,
    pub shuffles: Vec<ShuffleFacts>,
    pub lost_spans: u64,
    /// Batches of them, and other news, that the scheduler had no time for.
    pub dropped: u64,
    /// Bytes and events of a history that could not be read.
    pub unread: (u64, u64),
    /// The history that is written, or was read.
    pub history: Option<HistoryRow>,
}

/// A shuffle, as rules see it.
#[derive(Clone, Debug)]
pub struct ShuffleFacts {
    pub name: String,
    pub bytes: u64,
    pub partitions: u64,
    pub largest: u64,
}

/// All rules, the worst first.
pub fn judge(facts: &Facts) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    lost_workers(facts, &mut verdicts);
    damaged_history(facts, &mut verdicts);
    ended_history(facts, &mut verdicts);
    paused(facts, &mut verdicts);
    errors(facts, &mut verdicts);
    spilling(facts, &mut verdicts);
    skew(facts, &mut verdicts);
    skewed_shuffle(facts, &mut verdicts);
    slow_worker(facts, &mut verdicts);
    lock_held(facts, &mut verdicts);
    transfers(facts, &mut verdicts);
    critical_path(facts, &mut verdicts);
    client(facts, &mut verdicts);
    short_tasks(facts, &mut verdicts);
    lost_spans(facts, &mut verdicts);
    verdicts.sort_by_key(|verdict| verdict.severity);
    verdicts
}

fn verdict(rule: &'static str, severity: Severity, view: &'static str, text: String) -> Verdict {
    Verdict {
        rule,
        severity,
        text,
        view,
        place: Where::default(),
        first: 0,
        last: 0,
        weight: 0,
    }
}

fn of_group(group: &GroupFacts, verdict: Verdict) -> Verdict {
    let place = Where {
        group: Some(group.id),
        longest: Some(group.longest),
        ..Where::default()
    };
    Verdict { place, ..verdict }
}

fn of_worker(worker: &WorkerFacts, verdict: Verdict) -> Verdict {
    let place = Where {
        worker: Some(worker.id),
        ..Where::default()
    };
    Verdict { place, ..verdict }
}

/// Seconds, for people.
fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 100.0 => format!("{seconds:.1} s"),
        seconds => format!("{seconds:.0} s"),
    }
}

/// Bytes, for people.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        bytes if bytes < 1e6 => format!("{:.0} kB", bytes / 1e3),
        bytes if bytes < 1e9 => format!("{:.0} MB", bytes / 1e6),
        bytes => format!("{:.1} GB", bytes / 1e9),
    }
}

/// How many there are of something.
fn some(count: u64, what: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {what}{end}")
}

/// Processes that ended without having been asked to.
fn lost_workers(facts: &Facts, into: &mut Vec<Verdict>) {
    let lost: Vec<_> = facts
        .workers
        .iter()
        .filter(|worker| worker.lost.is_some())
        .collect();
    if let Some(last) = lost.last() {
        let why = last.lost.as_deref().unwrap_or_default();
        let text = match lost.len() {
            1 => format!("worker {} was lost: {why}", last.name),
            count => format!(
                "{count} workers were lost, the last one {}: {why}",
                last.name
            ),
        };
        into.push(of_worker(
            last,
            verdict("lost-workers", Severity::Bad, "workers", text).weighs(lost.len() as u64),
        ));
    }
}

/// Workers that start no tasks, for memory.
fn paused(facts: &Facts, into: &mut Vec<Verdict>) {
    let paused: Vec<_> = facts
        .workers
        .iter()
        .filter(|worker| worker.status == "paused")
        .collect();
    if let Some(first) = paused.first() {
        let text = format!(
            "{} of {} workers are paused for memory: {} has {} of {}",
            paused.len(),
            facts
                .workers
                .iter()
                .filter(|worker| worker.status != "gone")
                .count(),
            first.name,
            size(first.process),
            size(first.memory),
        );
        into.push(of_worker(
            first,
            verdict("paused", Severity::Bad, "workers", text).weighs(paused.len() as u64),
        ));
    }
}

/// Tasks that raised, whether they are run again or not.
fn errors(facts: &Facts, into: &mut Vec<Verdict>) {
    let failed = facts.groups.iter().map(|group| group.failed).sum::<u64>();
    let worst = facts.groups.iter().max_by_key(|group| group.failed);
    if let Some(worst) = worst.filter(|worst| worst.failed > 0) {
        let text = format!(
            "{} raised, {} of them of {} ({})",
            some(failed, "run"),
            worst.failed,
            worst.name,
            some(worst.runs, "run"),
        );
        let found = verdict("errors", Severity::Bad, "groups", text).weighs(failed);
        into.push(Verdict {
            place: Where {
                group: Some(worst.id),
                ..Where::default()
            },
            ..found
        });
    }
}

/// Values go to disk.
fn spilling(facts: &Facts, into: &mut Vec<Verdict>) {
    const LEAST: u64 = 10_000_000;
    if facts.spilled >= LEAST {
        let text = format!(
            "{} went to disk or came back within a minute: values need more memory than workers have",
            size(facts.spilled)
        );
        into.push(verdict("spilling", Severity::Warn, "workers", text).weighs(facts.spilled));
    }
}

/// One task of many takes far longer than the others, and much of the time that all took.
fn skew(facts: &Facts, into: &mut Vec<Verdict>) {
    let is_skewed = |group: &&GroupFacts| {
        group.runs >= 8
            && group.max >= 1.0
            && group.max >= 8.0 * group.median
            && group.max >= 0.25 * group.extent
            // Where each thread's first one takes long, it is for what that imports.
            && group.long <= 1 + group.runs / 100
    };
    let worst = facts.groups.iter().filter(is_skewed);
    if let Some(worst) = worst.max_by(|one, other| one.max.total_cmp(&other.max)) {
        let text = format!(
            "a task of {} took {}, half of its {} tasks at most {}",
            worst.name,
            time(worst.max),
            worst.runs,
            time(worst.median)
        );
        into.push(of_group(
            worst,
            verdict("skew", Severity::Warn, "stream", text).weighs((worst.max * 1e3) as u64),
        ));
    }
}

/// One partition is far larger than the others.
fn skewed_shuffle(facts: &Facts, into: &mut Vec<Verdict>) {
    for shuffle in &facts.shuffles {
        let mean = shuffle.bytes / shuffle.partitions.max(1);
        if shuffle.partitions >= 4 && shuffle.largest >= 64_000_000 && shuffle.largest >= 4 * mean {
            let text = format!(
                "a partition of shuffle {} has {}, all have {} on average",
                shuffle.name,
                size(shuffle.largest),
                size(mean)
            );
            let found = verdict("skewed-shuffle", Severity::Warn, "shuffles", text);
            into.push(Verdict {
                place: Where {
                    shuffle: Some(shuffle.name.clone()),
                    ..Where::default()
                },
                ..found.weighs(shuffle.largest)
            });
        }
    }
}

/// One worker takes longer for the same tasks.
fn slow_worker(facts: &Facts, into: &mut Vec<Verdict>) {
    let ratio = |worker: &WorkerFacts| worker.seconds / worker.expected.max(1e-9);
    let is_slow = |worker: &&WorkerFacts| {
        worker.status != "gone"
            && worker.runs >= 10
            && worker.seconds >= 2.0
            && ratio(worker) >= 1.8
    };
    let slow = facts.workers.iter().filter(is_slow);
    if let Some(slow) = slow.max_by(|one, other| ratio(one).total_cmp(&ratio(other))) {
        let text = format!(
            "worker {} takes {:.1} × as long as others for the same {} tasks",
            slow.name,
            ratio(slow),
            slow.runs
        );
        into.push(of_worker(
            slow,
            verdict("slow-worker", Severity::Warn, "workers", text)
                .weighs((ratio(slow) * 1e3) as u64),
        ));
    }
}

/// More time goes into bringing inputs than into tasks.
fn transfers(facts: &Facts, into: &mut Vec<Verdict>) {
    if facts.fetch_seconds >= 5.0 && facts.fetch_seconds >= facts.busy_seconds {
        let text = format!(
            "within a minute values took {} to come from other workers ({}), tasks ran for {}",
            time(facts.fetch_seconds),
            size(facts.fetched),
            time(facts.busy_seconds)
        );
        let found = verdict("transfers", Severity::Warn, "transfers", text);
        into.push(found.weighs((facts.fetch_seconds * 1e3) as u64));
    }
}

/// Most tasks wait for a few that run.
fn critical_path(facts: &Facts, into: &mut Vec<Verdict>) {
    if facts.snapshots >= 5 && facts.narrow * 10 >= facts.snapshots * 6 && facts.waiting > 0 {
        let text = format!(
            "{} tasks wait for {} that run; there are {} threads",
            facts.waiting, facts.assigned, facts.threads
        );
        let found = verdict("critical-path", Severity::Warn, "stream", text);
        into.push(found.weighs(facts.waiting));
    }
}

/// Workers have nothing to do between the tasks that come.
fn client(facts: &Facts, into: &mut Vec<Verdict>) {
    let has_room =
        facts.busy_seconds < 0.5 * 60.0_f64.min(facts.looks as f64) * f64::from(facts.threads);
    if facts.looks >= 20 && facts.starved * 10 >= facts.looks * 7 && facts.tasks >= 20 && has_room {
        let text = format!(
            "workers wait for the client: {} tasks came within a minute, and at {} of {} looks none was waiting",
            facts.tasks, facts.starved, facts.looks
        );
        let found = verdict("client", Severity::Note, "stream", text);
        into.push(found.weighs(facts.starved));
    }
}

/// Tasks so short that their administration takes as long.
fn short_tasks(facts: &Facts, into: &mut Vec<Verdict>) {
    let is_short = |group: &&GroupFacts| group.runs >= 10_000 && group.mean < 1e-3;
    let shortest = facts.groups.iter().filter(is_short);
    if let Some(group) = shortest.max_by_key(|group| group.runs) {
        let text = format!(
            "{} tasks of {} took {} on average: fewer and larger ones cost less to administer",
            group.runs,
            group.name,
            time(group.mean)
        );
        let found = verdict("short-tasks", Severity::Note, "groups", text).weighs(group.runs);
        into.push(Verdict {
            place: Where {
                group: Some(group.id),
                ..Where::default()
            },
            ..found
        });
    }
}

/// Threads that are busy and use one processor together: as if one could run at a time.
fn lock_held(facts: &Facts, into: &mut Vec<Verdict>) {
    let is_held = |worker: &&WorkerFacts| {
        worker.threads >= 2
            && worker.busy >= 1.8
            && worker.busy >= 0.8 * f64::from(worker.threads)
            && (0.9..=1.15).contains(&worker.processors)
    };
    let held: Vec<_> = facts.workers.iter().filter(is_held).collect();
    if let Some(worst) = held
        .iter()
        .max_by(|one, other| one.busy.total_cmp(&other.busy))
    {
        let text = format!(
            "{:.1} threads of worker {} ran tasks within ten seconds, and used {:.1} processors: they seem to hold the interpreter's lock; more processes with fewer threads run side by side",
            worst.busy, worst.name, worst.processors
        );
        into.push(of_worker(
            worst,
            verdict("lock-held", Severity::Warn, "workers", text).weighs((worst.busy * 1e3) as u64),
        ));
    }
}

/// What is not drawn.
fn lost_spans(facts: &Facts, into: &mut Vec<Verdict>) {
    let batches = |count| match count {
        1 => "1 batch of spans".into(),
        _ => format!("{count} batches of spans"),
    };
    let lost = match (facts.lost_spans, facts.dropped) {
        (0, 0) => return,
        (lost, 0) => format!("lost at workers: {}", some(lost, "span")),
        (0, dropped) => format!("dropped for lack of time: {}", batches(dropped)),
        (lost, dropped) => format!(
            "lost at workers: {}; dropped for lack of time: {}",
            some(lost, "span"),
            batches(dropped)
        ),
    };
    let text = format!("{lost}. Pictures lack them, sums too");
    let found = verdict("lost-spans", Severity::Note, "stream", text);
    into.push(found.weighs(facts.lost_spans.saturating_add(facts.dropped)));
}

/// What was written is not all there.
fn damaged_history(facts: &Facts, into: &mut Vec<Verdict>) {
    let what = match facts.unread {
        (0, 0) => return,
        (bytes, 0) => some(bytes, "byte"),
        (0, events) => some(events, "event"),
        (bytes, events) => format!("{} and {}", some(bytes, "byte"), some(events, "event")),
    };
    let text = format!(
        "of this history, {what} cannot be read, damaged or cut off: what they tell is missing everywhere"
    );
    into.push(verdict("damaged-history", Severity::Warn, "stream", text));
}

/// What came later is not written.
fn ended_history(facts: &Facts, into: &mut Vec<Verdict>) {
    let Some(history) = &facts.history else {
        return;
    };
    let why = match (history.state, &history.error) {
        ("full", _) => "as much as it may have",
        ("failed", Some(why)) => why,
        _ => return,
    };
    let text = format!(
        "the history ended at {} ({why}): what came later is not in it",
        size(history.bytes)
    );
    into.push(verdict("ended-history", Severity::Warn, "overview", text));
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::event::End;

    fn group(name: &str) -> GroupFacts {
        GroupFacts {
            id: 1,
            name: name.into(),
            runs: 200,
            failed: 0,
            seconds: 40.0,
            mean: 0.2,
            median: 0.13,
            max: 0.5,
            extent: 20.0,
            longest: 0,
            long: 1,
        }
    }

    fn worker(id: u32) -> WorkerFacts {
        WorkerFacts {
            id,
            name: format!("w{id}"),
            status: "running",
            lost: None,
            managed: 1 << 20,
            process: 1 << 28,
            memory: 1 << 30,
            runs: 100,
            seconds: 20.0,
            expected: 20.0,
            threads: 2,
            busy: 1.9,
            processors: 1.7,
        }
    }

    fn healthy() -> Facts {
        Facts {
            groups: vec![group("inc"), group("sum")],
            workers: vec![worker(1), worker(2)],
            tasks: 200,
            busy_seconds: 40.0,
            fetch_seconds: 1.0,
            fetched: 1 << 20,
            spilled: 0,
            threads: 4,
            snapshots: 20,
            looks: 20,
            starved: 2,
            narrow: 2,
            waiting: 100,
            assigned: 8,
            shuffles: vec![ShuffleFacts {
                name: "s".into(),
                bytes: 1 << 30,
                partitions: 8,
                largest: 150_000_000,
            }],
            lost_spans: 0,
            dropped: 0,
            unread: (0, 0),
            history: Some(HistoryRow::new(5, Some(9), None, "written")),
        }
    }

    /// The rules that speak when this is so.
    fn rules(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = healthy();
        change(&mut facts);
        judge(&facts).iter().map(|verdict| verdict.rule).collect()
    }

    #[test]
    fn a_healthy_run_is_silent() {
        assert_eq!(rules(|_| ()), [""; 0]);
        assert_eq!(judge(&Facts::default()), []);
    }

    #[test]
    fn each_rule_speaks_of_its_cause_alone() {
        let lost = rules(|facts| facts.workers[1].lost = Some("it was killed".into()));
        assert_eq!(lost, ["lost-workers"]);
        assert_eq!(
            rules(|facts| facts.workers[0].status = "paused"),
            ["paused"]
        );
        assert_eq!(rules(|facts| facts.groups[0].failed = 3), ["errors"]);
        assert_eq!(rules(|facts| facts.spilled = 1 << 30), ["spilling"]);
        assert_eq!(rules(|facts| facts.groups[0].max = 12.0), ["skew"]);
        let skewed = rules(|facts| facts.shuffles[0].largest = 700_000_000);
        assert_eq!(skewed, ["skewed-shuffle"]);
        assert_eq!(
            rules(|facts| facts.workers[0].expected = 9.0),
            ["slow-worker"]
        );
        let held = rules(|facts| facts.workers[0].processors = 1.02);
        assert_eq!(held, ["lock-held"]);
        assert_eq!(rules(|facts| facts.fetch_seconds = 50.0), ["transfers"]);
        assert_eq!(rules(|facts| facts.narrow = 15), ["critical-path"]);
        let starved = rules(|facts| {
            facts.starved = 18;
            facts.busy_seconds = 10.0;
        });
        assert_eq!(starved, ["client"]);
        let short = rules(|facts| {
            facts.groups[0].runs = 100_000;
            facts.groups[0].mean = 30e-6;
        });
        assert_eq!(short, ["short-tasks"]);
        assert_eq!(rules(|facts| facts.lost_spans = 1), ["lost-spans"]);
        // One that is gone is slow for nobody.
        let gone = rules(|facts| {
            facts.workers[0].expected = 9.0;
            facts.workers[0].status = "gone";
        });
        assert_eq!(gone, [""; 0]);
        assert_eq!(rules(|facts| facts.dropped = 1), ["lost-spans"]);
        for unread in [(5, 0), (0, 5), (5, 5)] {
            assert_eq!(rules(|facts| facts.unread = unread), ["damaged-history"]);
        }
        for (end, expected) in [
            (End::Full(9), &["ended-history"][..]),
            (End::Failed("no space left".into()), &["ended-history"]),
            (End::Closed, &[]),
        ] {
            let history = Some(HistoryRow::new(9, Some(9), Some(&end), "written"));
            assert_eq!(rules(|facts| facts.history = history), expected);
        }
    }

    #[test]
    fn one_is_one() {
        let mut facts = healthy();
        (facts.groups[0].failed, facts.groups[0].runs) = (1, 1);
        (facts.lost_spans, facts.dropped, facts.unread) = (1, 1, (1, 1));
        let name = facts.groups[0].name.clone();
        let texts: Vec<_> = judge(&facts).into_iter().map(|one| one.text).collect();
        let raised = format!("1 run raised, 1 of them of {name} (1 run)");
        assert!(texts.contains(&raised), "{texts:?}");
        for plural in ["1 runs", "1 spans", "1 batches", "1 bytes", "1 events"] {
            assert!(!texts.iter().any(|text| text.contains(plural)), "{texts:?}");
        }
    }

    #[test]
    fn rules_are_silent_a_little_below() {
        let imports = rules(|facts| {
            facts.groups[0].max = 12.0;
            facts.groups[0].long = 4;
        });
        assert_eq!(imports, [""; 0]);
        let long = rules(|facts| {
            // Long, and no longer than the others.
            facts.groups[0].max = 12.0;
            facts.groups[0].median = 10.0;
        });
        assert_eq!(long, [""; 0]);
        let short = rules(|facts| facts.groups[0].mean = 30e-6);
        assert_eq!(short, [""; 0]);
        let busy = rules(|facts| facts.starved = 18);
        assert_eq!(busy, [""; 0]);
        for processors in [0.3, 0.85, 1.2, 1.9] {
            let free = rules(|facts| facts.workers[0].processors = processors);
            assert_eq!(free, [""; 0]);
        }
        let single = rules(|facts| {
            let worker = &mut facts.workers[0];
            (worker.threads, worker.busy, worker.processors) = (1, 1.0, 1.0);
        });
        assert_eq!(single, [""; 0]);
        let few = rules(|facts| {
            facts.workers[0].expected = 9.0;
            facts.workers[0].runs = 3;
        });
        assert_eq!(few, [""; 0]);
        assert_eq!(
            rules(|facts| facts.shuffles[0].largest = 300_000_000),
            [""; 0]
        );
        assert_eq!(rules(|facts| facts.fetch_seconds = 39.0), [""; 0]);
        assert_eq!(rules(|facts| facts.narrow = 11), [""; 0]);
        // Nothing came for most of the minute.
        let idle = rules(|facts| {
            (facts.looks, facts.starved) = (3, 3);
            facts.busy_seconds = 1.0;
        });
        assert_eq!(idle, [""; 0]);
    }

    #[test]
    fn the_worst_comes_first_and_says_where() {
        let mut facts = healthy();
        facts.lost_spans = 5;
        facts.groups[0].max = 12.0;
        facts.groups[0].longest = 7;
        facts.workers[1].lost = Some("it was killed by signal 9".into());
        let verdicts = judge(&facts);
        let severities: Vec<_> = verdicts.iter().map(|verdict| verdict.severity).collect();
        assert_eq!(severities, [Severity::Bad, Severity::Warn, Severity::Note]);
        assert_eq!(verdicts[0].place.worker, Some(2));
        assert_eq!(verdicts[1].place.longest, Some(7));
        assert!(verdicts[1].text.contains("12.0 s"), "{}", verdicts[1].text);
    }
}
