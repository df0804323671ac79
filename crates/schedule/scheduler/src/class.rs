//! Constraint classes: tasks with equal restrictions and needs of resources.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use treadle_types::{Constraint, Symbol, WorkerId};

use crate::levels::Levels;
use crate::queue::Queues;
use crate::worker::Worker;

/// The number of a class. Numbers of classes without tasks are used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ClassId(pub(crate) u32);

impl ClassId {
    /// No constraint.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// A constraint and who satisfies it at the moment.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) constraint: Constraint,
    /// Tasks that have this constraint.
    pub(crate) tasks: u32,
    /// By worker: whether it may run them.
    eligible: Vec<bool>,
    /// Whether a worker that is there, and stays, has one of the names.
    pub(crate) named: bool,
    /// Ready tasks.
    pub(crate) queue: Queues,
    /// Eligible workers with room, by load.
    pub(crate) open: Levels,
}

impl Class {
    /// Whether a worker may run tasks of the class, now or when it has free resources.
    #[inline]
    pub(crate) fn admits(&self, worker: WorkerId) -> bool {
        self.eligible.get(worker.0 as usize) == Some(&true)
    }

    /// Whether tasks of the class use resources.
    #[inline]
    pub(crate) fn uses_resources(&self) -> bool {
        !self.constraint.resources.is_empty()
    }

    /// The workers that may run tasks of the class.
    pub(crate) fn eligible(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let workers = (0..).map(WorkerId).zip(&self.eligible);
        workers.filter_map(|(worker, &eligible)| eligible.then_some(worker))
    }

    /// Finds out who satisfies the constraint.
    pub(crate) fn recount<'a>(
        &mut self,
        workers: impl Iterator<Item = (WorkerId, &'a Worker)> + Clone,
    ) {
        let Constraint {
            workers: names,
            allow_other,
            resources,
        } = &self.constraint;
        let is_named = |worker: &Worker| names.iter().any(|&name| worker.is_called(name));
        // One that leaves is as good as gone.
        let mut staying = workers.clone().filter(|(_, worker)| worker.drain.is_none());
        self.named = staying.any(|(_, worker)| is_named(worker));
        let anybody = names.is_empty() || (*allow_other && !self.named);
        self.eligible.clear();
        for (id, worker) in workers {
            let enough = resources
                .iter()
                .all(|&(resource, amount)| worker.total(resource) >= amount);
            if enough && (anybody || is_named(worker)) {
                self.eligible.resize(id.0 as usize, false);
                self.eligible.push(true);
            }
        }
    }
}

/// What makes two constraints the same.
type Key = (Vec<Symbol>, bool, Vec<(Symbol, u64)>);

/// All classes that have tasks.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    classes: Vec<Option<Class>>,
    vacant: Vec<ClassId>,
    by_constraint: BTreeMap<Key, ClassId>,
}

impl Classes {
    fn key(constraint: &Constraint) -> Key {
        let mut workers = constraint.workers.clone();
        workers.sort_unstable();
        workers.dedup();
        let resources = constraint.resources.iter();
        let mut resources: Vec<_> = resources
            .map(|&(r, amount)| (r, amount.to_bits()))
            .collect();
        resources.sort_unstable();
        (workers, constraint.allow_other, resources)
    }

    /// The class of a constraint, and whether it is new: then the caller has it recounted.
    pub(crate) fn intern(&mut self, constraint: &Constraint) -> (ClassId, bool) {
        if constraint.workers.is_empty() && constraint.resources.is_empty() {
            return (ClassId::NONE, false);
        }
        let key = Self::key(constraint);
        if let Some(&id) = self.by_constraint.get(&key) {
            return (id, false);
        }
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.classes.push(None);
            ClassId(self.classes.len() as u32 - 1)
        });
        self.classes[id.0 as usize] = Some(Class {
            constraint: constraint.clone(),
            tasks: 0,
            eligible: Vec::new(),
            named: false,
            queue: Queues::default(),
            open: Levels::default(),
        });
        self.by_constraint.insert(key, id);
        (id, true)
    }

    /// A class that has no tasks any more goes.
    pub(crate) fn remove(&mut self, id: ClassId) {
        if let Some(class) = self.classes[id.0 as usize].take() {
            debug_assert!(class.queue.is_empty());
            self.by_constraint.remove(&Self::key(&class.constraint));
            self.vacant.push(id);
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: ClassId) -> Option<&Class> {
        self.classes.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ClassId) -> Option<&mut Class> {
        self.classes.get_mut(id.0 as usize)?.as_mut()
    }

    /// The classes, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClassId, &Class)> {
        let ids = (0..).map(ClassId);
        ids.zip(&self.classes)
            .filter_map(|(id, class)| Some((id, class.as_ref()?)))
    }

    /// The numbers of the classes.
    pub(crate) fn ids(&self) -> Vec<ClassId> {
        self.iter().map(|(id, _)| id).collect()
    }
}
