//! Who keeps how much of a process's memory, and how much each may.
//!
//! A process has a budget of memory. Some of what it takes is kept by *consumers*, which know how
//! much, and most of which can give some back: values that can go to disk, buffers of a shuffle,
//! payloads of broadcasts. The *rest* is what the process is measured to take beside them. What the
//! rest leaves of the budget is divided among the consumers, each of which gets a target.
//!
//! Who keeps memory registers, and stays registered as long as it may keep some. Nobody has to know
//! the others.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Somebody who keeps memory. Called with no lock of the ledger held.
pub trait Consumer: Send + Sync {
    /// What it keeps now.
    fn usage(&self) -> Usage;

    /// From now on it is to keep so many bytes at most. Who never gives anything back ignores it.
    fn set_target(&self, _bytes: u64) {}
}

/// What a consumer keeps, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// What it cannot give back.
    pub fixed: u64,
    /// What it gives back where its target says so; `None`: it never gives anything back.
    pub reclaimable: Option<u64>,
}

impl Usage {
    /// Of somebody who never gives anything back.
    pub fn fixed(bytes: u64) -> Self {
        Usage {
            fixed: bytes,
            reclaimable: None,
        }
    }

    /// Of somebody who can give everything back.
    pub fn reclaimable(bytes: u64) -> Self {
        Usage {
            fixed: 0,
            reclaimable: Some(bytes),
        }
    }

    pub fn used(self) -> u64 {
        self.fixed.saturating_add(self.reclaimable.unwrap_or(0))
    }
}

/// What a process takes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stock {
    /// What the consumers keep together.
    pub used: u64,
    /// What it takes beside them.
    pub rest: u64,
    /// All that it takes.
    pub process: u64,
}

/// Where a consumer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account {
    pub name: &'static str,
    /// What it keeps.
    pub usage: Usage,
    /// What it may keep, in bytes.
    pub target: u64,
}

/// The consumers of a process's memory. Clones are the same ledger.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<Arc<Entry>>>>);

struct Entry {
    name: &'static str,
    consumer: Arc<dyn Consumer>,
    /// The last one that it was given.
    target: AtomicU64,
}

/// The place of a consumer in the ledger: with this it leaves.
#[must_use = "a consumer leaves when this is dropped"]
pub struct Registration {
    ledger: Ledger,
    entry: Arc<Entry>,
}

impl Ledger {
    /// A ledger without consumers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Somebody keeps memory from now on. The name is for people. Without a target until the next
    /// [`Ledger::share`].
    pub fn register(&self, name: &'static str, consumer: Arc<dyn Consumer>) -> Registration {
        let entry = Arc::new(Entry {
            name,
            consumer,
            target: AtomicU64::new(u64::MAX),
        });
        self.entries().push(Arc::clone(&entry));
        Registration {
            ledger: self.clone(),
            entry,
        }
    }

    /// Tells what the consumers keep of a process from what it takes beside them. `process` measures
    /// what it takes, in bytes. It is called after they were asked: what they give back meanwhile must
    /// not look like memory that the rest takes.
    pub fn stock(&self, process: impl FnOnce() -> u64) -> Stock {
        let usages = self.copy().into_iter().map(|entry| entry.consumer.usage());
        let used = usages.fold(0, |sum: u64, usage| sum.saturating_add(usage.used()));
        let process = process();
        Stock {
            used,
            rest: process.saturating_sub(used),
            process,
        }
    }

    /// Gives each consumer a target. Together they are what `rest` leaves of `budget`, or less.
    pub fn share(&self, budget: u64, rest: u64) {
        let entries = self.copy();
        let usages: Vec<Usage> = entries.iter().map(|entry| entry.consumer.usage()).collect();
        let targets = targets(budget.saturating_sub(rest), &usages);
        for (entry, target) in entries.iter().zip(targets) {
            entry.target.store(target, Ordering::Relaxed);
            entry.consumer.set_target(target);
        }
    }

    /// Where each consumer stands, in the order in which they came.
    pub fn accounts(&self) -> Vec<Account> {
        let account = |entry: Arc<Entry>| Account {
            name: entry.name,
            usage: entry.consumer.usage(),
            target: entry.target.load(Ordering::Relaxed),
        };
        self.copy().into_iter().map(account).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Consumers have locks of their own, which they may hold while they register others.
    fn copy(&self) -> Vec<Arc<Entry>> {
        self.entries().clone()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut entries = self.ledger.entries();
        entries.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.accounts()).finish()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.entry.name)
    }
}

/// Of what is left beside what nobody gives back, the share that is kept for growth: a consumer that
/// has nothing yet can begin, while another one keeps all there is.
const GROWTH: u64 = 8;

/// Divides `left` bytes among consumers.
///
/// What cannot be given back comes first; if that is too much, all are cut in proportion. The others
/// divide the rest by max-min fairness: nobody gets less than an equal share unless it wants less. Each
/// wants what it keeps, and some room to grow. What nobody wants is divided equally, so that all can
/// grow until the next time.
fn targets(left: u64, usages: &[Usage]) -> Vec<u64> {
    let fixed: u128 = usages.iter().map(|usage| u128::from(usage.fixed)).sum();
    if fixed > u128::from(left) {
        // Less than `left` each, so it fits.
        let part = |usage: &Usage| (u128::from(usage.fixed) * u128::from(left) / fixed) as u64;
        return usages.iter().map(part).collect();
    }
    let mut targets: Vec<u64> = usages.iter().map(|usage| usage.fixed).collect();
    let spare = left - fixed as u64;
    let mut wanted: Vec<(u64, usize)> = usages
        .iter()
        .enumerate()
        .filter_map(|(who, usage)| Some((usage.reclaimable?, who)))
        .collect();
    wanted.sort_unstable();
    let count = wanted.len() as u64;
    let mut rest = spare;
    // The least first: what it leaves of its share goes to those that want more.
    for (&(keeps, who), others) in wanted.iter().zip((1..=count).rev()) {
        let wants = keeps.saturating_add(spare / GROWTH / count);
        let gets = wants.min(rest / others);
        targets[who] += gets;
        rest -= gets;
    }
    for &(_, who) in &wanted {
        targets[who] += rest / count;
    }
    targets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keeps what a test says.
    #[derive(Debug)]
    struct Shelf {
        usage: Mutex<Usage>,
        target: AtomicU64,
    }

    impl Shelf {
        fn new(usage: Usage) -> Arc<Self> {
            Arc::new(Shelf {
                usage: Mutex::new(usage),
                target: AtomicU64::new(u64::MAX),
            })
        }

        fn keeps(&self, usage: Usage) {
            *self.usage.lock().unwrap() = usage;
        }

        fn target(&self) -> u64 {
            self.target.load(Ordering::Relaxed)
        }
    }

    impl Consumer for Shelf {
        fn usage(&self) -> Usage {
            *self.usage.lock().unwrap()
        }

        fn set_target(&self, bytes: u64) {
            self.target.store(bytes, Ordering::Relaxed);
        }
    }

    const BUDGET: u64 = 1000;

    #[test]
    fn values_get_what_payloads_and_the_rest_leave() {
        let ledger = Ledger::new();
        let values = Shelf::new(Usage::reclaimable(0));
        let payloads = Shelf::new(Usage::fixed(100));
        let _values = ledger.register("values", values.clone());
        let _payloads = ledger.register("broadcast payloads", payloads.clone());
        for (kept, rest, target) in [(0, 0, 900), (500, 300, 600), (5000, 300, 600), (9, 950, 0)] {
            values.keeps(Usage::reclaimable(kept));
            let used = kept + 100;
            let process = used + rest;
            let stock = ledger.stock(|| process);
            assert_eq!(
                stock,
                Stock {
                    used,
                    rest,
                    process
                }
            );
            ledger.share(BUDGET, stock.rest);
            assert_eq!(values.target(), target);
        }
        // Mapped pages of others can make the measured process smaller than what is kept.
        let stock = ledger.stock(|| 3);
        assert_eq!((stock.used, stock.rest), (109, 0));
        ledger.share(BUDGET, u64::MAX);
        assert_eq!((values.target(), payloads.target()), (0, 0));
    }

    #[test]
    fn what_is_given_back_while_the_process_is_measured_is_not_the_rest() {
        let ledger = Ledger::new();
        let values = Shelf::new(Usage::reclaimable(300));
        let _values = ledger.register("values", Arc::<Shelf>::clone(&values));
        let stock = ledger.stock(|| {
            // A value goes to disk.
            values.keeps(Usage::reclaimable(200));
            200 + 50
        });
        assert_eq!(stock.rest, 0, "{stock:?}");
    }

    #[test]
    fn a_third_consumer_just_registers() {
        let ledger = Ledger::new();
        let values = Shelf::new(Usage::reclaimable(900));
        let payloads = Shelf::new(Usage::fixed(100));
        let shuffle = Shelf::new(Usage::reclaimable(0));
        let _values = ledger.register("values", values.clone());
        let _payloads = ledger.register("broadcast payloads", payloads.clone());
        ledger.share(BUDGET, 100);
        assert_eq!(values.target(), 800);

        let registration = ledger.register("shuffle buffers", shuffle.clone());
        ledger.share(BUDGET, 100);
        // It has nothing yet, and room to begin; its part grows with it up to a half.
        assert_eq!((values.target(), shuffle.target()), (750, 50));
        shuffle.keeps(Usage::reclaimable(200));
        ledger.share(BUDGET, 100);
        assert_eq!((values.target(), shuffle.target()), (550, 250));
        shuffle.keeps(Usage::reclaimable(2000));
        ledger.share(BUDGET, 100);
        assert_eq!((values.target(), shuffle.target()), (400, 400));
        // The rest grows: all have less.
        ledger.share(BUDGET, 500);
        assert_eq!((values.target(), shuffle.target()), (200, 200));
        assert_eq!(payloads.target(), 100);
        // Who keeps little lets the other have more, and both can grow.
        values.keeps(Usage::reclaimable(100));
        shuffle.keeps(Usage::reclaimable(300));
        ledger.share(BUDGET, 100);
        assert_eq!((values.target(), shuffle.target()), (300, 500));

        let names: Vec<_> = ledger.accounts().iter().map(|one| one.name).collect();
        assert_eq!(names, ["values", "broadcast payloads", "shuffle buffers"]);
        assert_eq!(ledger.accounts()[2].target, 500);
        drop(registration);
        ledger.share(BUDGET, 100);
        assert_eq!(values.target(), 800);
        assert_eq!(ledger.accounts().len(), 2);
        assert_eq!(Arc::strong_count(&shuffle), 1);
    }

    #[test]
    fn what_is_fixed_is_cut_in_proportion_where_it_is_too_much() {
        let usages = [Usage::fixed(300), Usage::reclaimable(9), Usage::fixed(100)];
        assert_eq!(targets(200, &usages), [150, 0, 50]);
        assert_eq!(targets(0, &usages), [0, 0, 0]);
        assert!(targets(200, &[]).is_empty());
        let huge = [Usage::fixed(u64::MAX); 3];
        assert_eq!(targets(u64::MAX, &huge), [u64::MAX / 3; 3]);
    }

    fn usage() -> impl Strategy<Value = Usage> {
        let bytes = prop_oneof![0..2000_u64, any::<u64>()];
        (bytes.clone(), prop::option::of(bytes))
            .prop_map(|(fixed, reclaimable)| Usage { fixed, reclaimable })
    }

    proptest! {
        #[test]
        fn targets_stay_within_what_is_left(
            left in prop_oneof![0..5000_u64, any::<u64>()],
            usages in prop::collection::vec(usage(), 0..6),
        ) {
            let targets = targets(left, &usages);
            prop_assert_eq!(targets.len(), usages.len());
            let sum: u128 = targets.iter().map(|&target| u128::from(target)).sum();
            prop_assert!(sum <= u128::from(left));
            let fixed: u128 = usages.iter().map(|usage| u128::from(usage.fixed)).sum();
            if fixed > u128::from(left) {
                return Ok(());
            }
            let count = usages.iter().filter(|usage| usage.reclaimable.is_some()).count() as u128;
            let spare = u128::from(left) - fixed;
            for (usage, &target) in usages.iter().zip(&targets) {
                let part = u128::from(target - usage.fixed);
                match usage.reclaimable {
                    None => prop_assert_eq!(part, 0),
                    // All that it keeps, or an equal share.
                    Some(keeps) => prop_assert!(part >= u128::from(keeps).min(spare / count)),
                }
            }
            // Nothing is left over but what division drops.
            prop_assert!(count == 0 || u128::from(left) - sum < count);
        }

        #[test]
        fn who_leaves_makes_room_for_the_others(
            left in 0..5000_u64,
            mut usages in prop::collection::vec(usage(), 1..6),
        ) {
            let before = targets(left, &usages);
            usages.pop();
            let after = targets(left, &usages);
            for (before, after) in before.iter().zip(&after) {
                prop_assert!(after >= before, "{before} became {after}");
            }
        }
    }
}
