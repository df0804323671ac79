//! Commands to a worker, in columns.

use treadle_types::{
    Assignment, Attempt, ClientId, Command, Holders, Input, Inputs, ObjectId, Place, Priority,
    TaskId, WorkerId,
};

use super::WireError;
use super::column::{Cells, Column};
use super::family::{Family, Rows};
use crate::wire::proto;

const ASSIGN: u64 = 0;
const RETRACT: u64 = 1;
const CANCEL: u64 = 2;
const RELEASE: u64 = 3;
const COPY: u64 = 4;

const KEEP: u64 = 1;
const ACTOR: u64 = 2;

const HERE: u64 = 0;
const INLINE: u64 = 1;
const AT: u64 = 2;

#[derive(Debug, Default)]
pub struct Commands {
    kinds: Column,
    tasks: Column,
    attempts: Column,
    users: Column,
    submissions: Column,
    ranks: Column,
    clients: Column,
    flags: Column,
    recipe_lengths: Column,
    recipes: Column,
    input_counts: Column,
    input_tasks: Column,
    input_attempts: Column,
    nbytes: Column,
    places: Column,
    inline_lengths: Column,
    inlines: Column,
    holder_counts: Column,
    holders: Column,
}

impl Commands {
    fn columns(&mut self) -> [&mut Column; 19] {
        [
            &mut self.kinds,
            &mut self.tasks,
            &mut self.attempts,
            &mut self.users,
            &mut self.submissions,
            &mut self.ranks,
            &mut self.clients,
            &mut self.flags,
            &mut self.recipe_lengths,
            &mut self.recipes,
            &mut self.input_counts,
            &mut self.input_tasks,
            &mut self.input_attempts,
            &mut self.nbytes,
            &mut self.places,
            &mut self.inline_lengths,
            &mut self.inlines,
            &mut self.holder_counts,
            &mut self.holders,
        ]
    }

    pub(super) fn push(&mut self, command: &Command) {
        match command {
            Command::Assign(assignment) => self.assign(assignment),
            Command::Retract(object) => self.object(RETRACT, *object),
            Command::Cancel(object) => self.object(CANCEL, *object),
            Command::Release(object) => self.object(RELEASE, *object),
            Command::Copy {
                object,
                nbytes,
                holders,
            } => {
                self.object(COPY, *object);
                self.nbytes.put(*nbytes);
                self.holder_counts.put(holders.len() as u64);
                self.holders(holders);
            }
        }
    }

    #[inline]
    fn object(&mut self, kind: u64, object: ObjectId) {
        self.kinds.put(kind);
        self.tasks.put_delta(object.task.0.into());
        self.attempts.put_delta(object.attempt.0.into());
    }

    fn assign(&mut self, assignment: &Assignment) {
        let Assignment {
            object,
            priority,
            client,
            recipe,
            inputs,
            keep,
            actor,
        } = assignment;
        self.object(ASSIGN, *object);
        self.users.put_delta(i64::from(priority.user) as u64);
        self.submissions.put_delta(priority.submission.into());
        self.ranks.put_delta(priority.rank.into());
        self.clients.put_delta(client.0.into());
        let keep = if *keep { KEEP } else { 0 };
        let actor = if *actor { ACTOR } else { 0 };
        self.flags.put(keep | actor);
        self.recipe_lengths.put(recipe.len() as u64);
        self.recipes.put_bytes(recipe);
        self.input_counts.put(inputs.len() as u64);
        for input in inputs {
            self.input_tasks.put_delta(input.object.task.0.into());
            self.input_attempts.put_delta(input.object.attempt.0.into());
            self.nbytes.put(input.nbytes);
            match &input.place {
                Place::Here => self.places.put(HERE),
                Place::Inline(value) => {
                    self.places.put(INLINE);
                    self.inline_lengths.put(value.len() as u64);
                    self.inlines.put_bytes(value);
                }
                Place::At(holders) => {
                    self.places.put(AT + holders.len() as u64);
                    self.holders(holders);
                }
            }
        }
    }

    fn holders(&mut self, holders: &Holders) {
        for holder in holders {
            self.holders.put(holder.0.into());
        }
    }

    /// An upper bound of what a command adds, in bytes.
    pub(super) fn cost(command: &Command) -> usize {
        match command {
            Command::Assign(assignment) => {
                let input = |input: &Input| match &input.place {
                    Place::Here => 32,
                    Place::Inline(value) => 40 + value.len(),
                    Place::At(holders) => 40 + 5 * holders.len(),
                };
                80 + assignment.recipe.len() + assignment.inputs.iter().map(input).sum::<usize>()
            }
            Command::Copy { holders, .. } => 48 + 5 * holders.len(),
            Command::Retract(_) | Command::Cancel(_) | Command::Release(_) => 16,
        }
    }
}

impl Family for Commands {
    const FIELD: u32 = 1;

    fn is_empty(&self) -> bool {
        self.kinds.len() == 0
    }

    fn written(&mut self) -> usize {
        let columns = self.columns().into_iter().zip(1..);
        columns.map(|(column, field)| column.written(field)).sum()
    }

    fn write(&mut self, into: &mut Vec<u8>) {
        for (column, field) in self.columns().into_iter().zip(1..) {
            column.write(field, into);
        }
    }
}

#[derive(Debug)]
pub struct CommandRows {
    kinds: Cells,
    tasks: Cells,
    attempts: Cells,
    users: Cells,
    submissions: Cells,
    ranks: Cells,
    clients: Cells,
    flags: Cells,
    recipe_lengths: Cells,
    recipes: Cells,
    input_counts: Cells,
    input_tasks: Cells,
    input_attempts: Cells,
    nbytes: Cells,
    places: Cells,
    inline_lengths: Cells,
    inlines: Cells,
    holder_counts: Cells,
    holders: Cells,
}

impl CommandRows {
    pub(super) fn new(section: proto::Commands) -> Self {
        Self {
            kinds: Cells::new("kinds", section.kinds),
            tasks: Cells::new("tasks", section.tasks),
            attempts: Cells::new("attempts", section.attempts),
            users: Cells::new("users", section.users),
            submissions: Cells::new("submissions", section.submissions),
            ranks: Cells::new("ranks", section.ranks),
            clients: Cells::new("clients", section.clients),
            flags: Cells::new("flags", section.flags),
            recipe_lengths: Cells::new("recipe_lengths", section.recipe_lengths),
            recipes: Cells::new("recipes", section.recipes),
            input_counts: Cells::new("input_counts", section.input_counts),
            input_tasks: Cells::new("input_tasks", section.input_tasks),
            input_attempts: Cells::new("input_attempts", section.input_attempts),
            nbytes: Cells::new("nbytes", section.nbytes),
            places: Cells::new("places", section.places),
            inline_lengths: Cells::new("inline_lengths", section.inline_lengths),
            inlines: Cells::new("inlines", section.inlines),
            holder_counts: Cells::new("holder_counts", section.holder_counts),
            holders: Cells::new("holders", section.holders),
        }
    }

    #[inline]
    fn assignment(&mut self, object: ObjectId) -> Result<Assignment, WireError> {
        let user = self.users.get_delta()?;
        let priority = Priority {
            user: i32::try_from(user as i64).map_err(|_| WireError::Range {
                column: "users",
                value: user,
            })?,
            submission: self.submissions.get_delta_u32()?,
            rank: self.ranks.get_delta_u32()?,
        };
        let client = ClientId(self.clients.get_delta_u32()?);
        let flags = self.flags.get_flags(KEEP | ACTOR)?;
        let recipe_length = self.recipe_lengths.get()?;
        let recipe = self.recipes.slice(recipe_length)?;
        let count = self.input_counts.get_count(&self.places)?;
        let mut inputs = Inputs::with_capacity(count);
        for _ in 0..count {
            inputs.push(self.input()?);
        }
        Ok(Assignment {
            object,
            priority,
            client,
            recipe,
            inputs,
            keep: flags & KEEP != 0,
            actor: flags & ACTOR != 0,
        })
    }

    #[inline]
    fn input(&mut self) -> Result<Input, WireError> {
        let task = TaskId(self.input_tasks.get_delta_u32()?);
        let attempt = Attempt(self.input_attempts.get_delta_u32()?);
        let nbytes = self.nbytes.get()?;
        let place = match self.places.get()? {
            HERE => Place::Here,
            INLINE => {
                let length = self.inline_lengths.get()?;
                Place::Inline(self.inlines.slice(length)?)
            }
            at => Place::At(holders(&mut self.holders, at - AT)?),
        };
        Ok(Input {
            object: ObjectId::new(task, attempt),
            nbytes,
            place,
        })
    }
}

/// So many workers.
pub(super) fn holders(column: &mut Cells, count: u64) -> Result<Holders, WireError> {
    let mut holders = Holders::new();
    // Ends with the column: each takes a byte at least.
    for _ in 0..count {
        holders.push(WorkerId(column.get_u32()?));
    }
    Ok(holders)
}

impl Rows for CommandRows {
    type Message = Command;

    #[inline]
    fn next(&mut self) -> Result<Option<Command>, WireError> {
        if self.kinds.is_done() {
            return Ok(None);
        }
        let kind = self.kinds.get()?;
        let task = TaskId(self.tasks.get_delta_u32()?);
        let attempt = Attempt(self.attempts.get_delta_u32()?);
        let object = ObjectId::new(task, attempt);
        Ok(Some(match kind {
            ASSIGN => Command::Assign(self.assignment(object)?),
            RETRACT => Command::Retract(object),
            CANCEL => Command::Cancel(object),
            RELEASE => Command::Release(object),
            COPY => {
                let nbytes = self.nbytes.get()?;
                let count = self.holder_counts.get()?;
                Command::Copy {
                    object,
                    nbytes,
                    holders: holders(&mut self.holders, count)?,
                }
            }
            value => {
                return Err(WireError::Range {
                    column: "kinds",
                    value,
                });
            }
        }))
    }

    fn end(&self) -> Result<(), WireError> {
        for column in [
            &self.tasks,
            &self.attempts,
            &self.users,
            &self.submissions,
            &self.ranks,
            &self.clients,
            &self.flags,
            &self.recipe_lengths,
            &self.recipes,
            &self.input_counts,
            &self.input_tasks,
            &self.input_attempts,
            &self.nbytes,
            &self.places,
            &self.inline_lengths,
            &self.inlines,
            &self.holder_counts,
            &self.holders,
        ] {
            column.end()?;
        }
        Ok(())
    }
}
