//! Masters that claim one application, at a registry that is away, ends sessions, and loses answers.

use std::time::Duration;

use treadle_shuffle_registry::{
    ClaimStanding, Claiming, ClaimingEffect, ClaimingEvent, Config, Failure, Master,
};
use treadle_sim_kernel::{Random, Trace, counters};

const MASTERS: usize = 4;
const STEPS: u64 = 300;
/// After the last fault, all is settled within this: an interruption, and the longest pauses.
const SETTLED: Duration = Duration::from_secs(120);

counters! {
    /// What has happened.
    #[allow(unreachable_pub, reason = "the macro is for crates")]
    pub struct Claims {
        /// Claims that the registry has taken.
        pub held: u64,
        /// Claims for which another master was named.
        pub elsewhere: u64,
        /// Sessions that the registry has ended.
        pub ended: u64,
        /// Answers that were lost, after the registry has done what it was asked.
        pub lost: u64,
        /// Nodes of an earlier session that went over to the next.
        pub taken_over: u64,
    }
}

struct Claimant {
    machine: Claiming,
    session: Option<u64>,
    /// One that was given up, and may have the node still.
    before: Option<u64>,
    asked: Option<ClaimingEffect>,
}

struct World {
    now: Duration,
    random: Random,
    claimants: Vec<Claimant>,
    /// Who has the node, and with which session.
    node: Option<(usize, u64)>,
    last_session: u64,
    happened: Claims,
    trace: Trace,
}

/// Runs one seed.
///
/// # Errors
/// What does not hold.
pub(crate) fn simulate(seed: u64, trace: Trace) -> Result<Claims, String> {
    let claimant = |number: u64| Claimant {
        machine: Claiming::new(Config::default(), seed ^ number << 32),
        session: None,
        before: None,
        asked: None,
    };
    let mut world = World {
        now: Duration::ZERO,
        random: Random::new(seed),
        claimants: (0..MASTERS as u64).map(claimant).collect(),
        node: None,
        last_session: 0,
        happened: Claims::default(),
        trace,
    };
    let run = world.run();
    run.map_err(|error| format!("{error}\n{}", world.trace.lines()))?;
    Ok(world.happened)
}

impl World {
    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.now += Duration::from_millis(self.random.below(1_000));
            let who = self.random.index(MASTERS);
            match self.random.below(12) {
                0 => self.end_session(who)?,
                1 => self.lose_answer(who)?,
                _ => self.answer(who)?,
            }
        }
        let until = self.now + SETTLED;
        while self.now < until {
            self.now += Duration::from_millis(100);
            for who in 0..MASTERS {
                self.answer(who)?;
            }
        }
        self.is_settled()
    }

    fn tell(&mut self, who: usize, event: ClaimingEvent) -> Result<(), String> {
        let now = self.now;
        self.trace
            .add(|| format!("{now:?} master {who}: {event:?}"));
        let claimant = &mut self.claimants[who];
        if let ClaimingEvent::Claimed | ClaimingEvent::Taken(_) = event {
            let closed = claimant.before.take();
            if self
                .node
                .is_some_and(|(_, session)| Some(session) == closed)
            {
                self.node = None;
            }
        }
        claimant.asked = claimant.machine.handle(event, self.now);
        claimant
            .machine
            .check()
            .map_err(|error| error.to_string())?;
        let holds = |it: &&Claimant| *it.machine.standing() == ClaimStanding::Held;
        match self.claimants.iter().filter(holds).count() {
            0 | 1 => Ok(()),
            more => Err(format!("{more} masters hold the application")),
        }
    }

    /// Answers what a master has asked; without that, calls it when it wants to be.
    fn answer(&mut self, who: usize) -> Result<(), String> {
        let due = self.claimants[who].machine.deadline();
        let event = match self.claimants[who].asked.take() {
            Some(ClaimingEffect::Connect) => self.connect(who),
            Some(ClaimingEffect::Claim) => self.claim(who),
            Some(ClaimingEffect::Close) => return Err("nobody has ended it".into()),
            None if due.is_some_and(|due| due <= self.now) => ClaimingEvent::Tick,
            None => return Ok(()),
        };
        self.tell(who, event)
    }

    /// The registry does what it was asked, and the answer does not come.
    fn lose_answer(&mut self, who: usize) -> Result<(), String> {
        match self.claimants[who].asked.take() {
            Some(ClaimingEffect::Claim) => drop(self.claim(who)),
            Some(_) => {}
            None => return Ok(()),
        }
        self.happened.lost += 1;
        let failure = Failure {
            why: "no answer".into(),
            is_refusal: false,
        };
        // It is given up: only with the answer to the next it ends.
        let claimant = &mut self.claimants[who];
        if let Some(session) = claimant.session.take() {
            claimant.before.get_or_insert(session);
        }
        self.tell(who, ClaimingEvent::Failed(failure))
    }

    fn end_session(&mut self, who: usize) -> Result<(), String> {
        let Some(ended) = self.claimants[who].session.take() else {
            return Ok(());
        };
        self.happened.ended += 1;
        if self.node.is_some_and(|(_, session)| session == ended) {
            self.node = None;
        }
        self.tell(who, ClaimingEvent::Ended("it has run out".into()))
    }

    fn connect(&mut self, who: usize) -> ClaimingEvent {
        self.last_session += 1;
        let claimant = &mut self.claimants[who];
        if let Some(session) = claimant.session.replace(self.last_session) {
            claimant.before.get_or_insert(session);
        }
        ClaimingEvent::Connected
    }

    /// The node is written unless it is there. One of the same master goes over to this session.
    fn claim(&mut self, who: usize) -> ClaimingEvent {
        let Some(session) = self.claimants[who].session else {
            return ClaimingEvent::Ended("there is no session".into());
        };
        match self.node {
            Some((other, _)) if other != who => {
                self.happened.elsewhere += 1;
                ClaimingEvent::Taken(master(other))
            }
            before => {
                self.happened.held += 1;
                self.happened.taken_over += u64::from(before.is_some());
                self.node = Some((who, session));
                ClaimingEvent::Claimed
            }
        }
    }

    fn is_settled(&self) -> Result<(), String> {
        let Some((owner, _)) = self.node else {
            return Err("no master holds the application".into());
        };
        for (who, claimant) in self.claimants.iter().enumerate() {
            let expected = match who == owner {
                true => ClaimStanding::Held,
                false => ClaimStanding::Elsewhere(master(owner)),
            };
            let standing = claimant.machine.standing();
            if *standing != expected {
                return Err(format!(
                    "master {who} stands as {standing:?}, not {expected:?}"
                ));
            }
        }
        Ok(())
    }
}

fn master(number: usize) -> Master {
    Master {
        application: 7,
        address: format!("treadle://h:{}", number + 1),
        number: number as u32,
    }
}
