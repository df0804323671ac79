//! The world of a plane, and the loop that runs it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::{Item, Kernel};

/// What a plane brings: how its items happen, and what must hold.
pub trait World {
    /// What is to happen.
    type Item: Item;
    /// Nodes of the network, and their processes.
    type Node: Copy + Ord;
    /// A simulation that lasts longer, or takes more steps, goes round in circles.
    const LIMIT: (Duration, u64);

    /// The clock.
    fn kernel(&self) -> &Kernel<Self::Item, Self::Node>;

    /// The clock.
    fn kernel_mut(&mut self) -> &mut Kernel<Self::Item, Self::Node>;

    /// The process in which an item happens: while it is paused, the item waits.
    fn process(&self, _item: &Self::Item) -> Option<Self::Node> {
        None
    }

    /// The nodes between which an item travels: while they are cut, it waits. A plane whose
    /// connections break when they are cut says nothing here.
    fn route(&self, _item: &Self::Item) -> Option<(Self::Node, Self::Node)> {
        None
    }

    /// An item happens.
    ///
    /// # Errors
    /// What does not hold.
    fn step(&mut self, item: Self::Item) -> Result<(), String>;

    /// What must hold after each step.
    ///
    /// # Errors
    /// What does not hold.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Whether the simulation has come to its end, after a step.
    fn is_over(&mut self) -> bool {
        false
    }

    /// What is open, for the report of a simulation that does not end.
    fn unresolved(&self) -> String {
        String::new()
    }

    /// Runs until the world is over. True if it is, false if nothing more is to happen.
    ///
    /// # Errors
    /// The first thing that does not hold.
    fn run(&mut self) -> Result<bool, String> {
        while let Some((number, item)) = self.kernel_mut().pop() {
            if !self.happen(number, item)? {
                continue;
            }
            if self.is_over() {
                return Ok(true);
            }
            let (deadline, steps) = Self::LIMIT;
            if self.kernel().now > deadline || self.kernel().steps > steps {
                return Err(format!("goes round in circles: {}", self.unresolved()));
            }
        }
        Ok(false)
    }

    /// Has happen what is to happen until a time, for a world within another one.
    ///
    /// # Errors
    /// The first thing that does not hold.
    fn run_until(&mut self, at: Duration) -> Result<(), String> {
        while self.kernel().next_at().is_some_and(|next| next <= at)
            && let Some((number, item)) = self.kernel_mut().pop()
        {
            self.happen(number, item)?;
        }
        self.kernel_mut().advance(at);
        Ok(())
    }

    /// An item happens, or waits: then false.
    ///
    /// # Errors
    /// What does not hold.
    fn happen(&mut self, number: u64, item: Self::Item) -> Result<bool, String> {
        if let Some(until) = self.waits(&item) {
            self.kernel_mut().put_back(until, number, item);
            return Ok(false);
        }
        let is_periodic = item.is_periodic();
        self.kernel_mut().begin(&item);
        self.step(item)?;
        self.check()?;
        self.kernel_mut().end(is_periodic);
        Ok(true)
    }

    /// Until when an item waits, since its process is paused or the network is cut.
    fn waits(&self, item: &Self::Item) -> Option<Duration> {
        let kernel = self.kernel();
        let process = self.process(item);
        let paused = process.and_then(|process| kernel.paused_until(process));
        let route = self.route(item);
        let cut = route.and_then(|(one, other)| kernel.cut_until(one, other));
        paused.max(cut)
    }

    /// Does something with the world, such as [`World::run`]. A panic is an error, and an error says
    /// when it was found, and what happened before.
    ///
    /// # Errors
    /// What does not hold.
    fn simulate(&mut self, run: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<(), String>
    where
        Self: Sized,
    {
        let result = catch_unwind(AssertUnwindSafe(|| run(self)));
        let result = result.unwrap_or_else(|panic| Err(format!("panic: {}", text(&*panic))));
        let kernel = self.kernel();
        result.map_err(|error| format!("at {:?}: {error}{}", kernel.now, kernel.trace.lines()))
    }
}

/// What a panic says.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("?")
}
