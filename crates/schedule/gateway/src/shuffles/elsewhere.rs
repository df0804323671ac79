//! Shuffles whose rows a stand-alone service keeps. Its master knows where they are, and workers say to it
//! what they write and read. Here is what tasks have to do with them: which run again, and when the rows
//! are not needed any more, which the sidecar tells the service.

use alloc::vec::Vec;

use treadle_shuffle::ShuffleId;
use treadle_types::{Runs, Value};

use super::registry::Ended;
use crate::operations::{Answered, Arguments, OperationError, dict, int};
use crate::state::Core;

impl Core {
    /// A worker has learnt that all copies of some rows are lost, or that its barrier has receipts of another
    /// run: `name` and `number` of the shuffle, `maps` (ranges), and `outputs`, whether what was read of it is
    /// not valid either. They run again. What is said of an earlier run of it changes nothing.
    pub(crate) fn shuffle_lost(&mut self, arguments: &Arguments) -> Answered {
        let name = arguments.text("name").unwrap_or_default();
        let ranges = arguments.list("maps").unwrap_or_default();
        let maps = ranges.iter().map(super::hosted::range);
        let maps = maps.collect::<Option<Vec<_>>>().and_then(Runs::from_ranges);
        let Some(maps) = maps else {
            return Err(OperationError::Invalid(
                "maps has to be a list of ranges, in ascending order",
            ));
        };
        let number = arguments.integer("number");
        let number = number.and_then(|number| u64::try_from(number).ok());
        let known = self.shuffles.registry.get(name);
        let is_meant =
            number.is_some() && known.is_some_and(|known| known.number == number.map(ShuffleId));
        if is_meant {
            self.invalidate_maps(name, &maps, arguments.is_set("outputs"));
        }
        Ok(Some(Value::Bool(is_meant)))
    }

    /// A shuffle has ended. If its rows are elsewhere, the sidecar has them dropped there.
    pub(super) fn over_elsewhere(&mut self, ended: Ended) {
        if let Some(service) = ended.service {
            let told = dict([
                ("number", int(ended.number.0)),
                ("service", Value::Str(service)),
            ]);
            self.inform_sidecar("shuffle-over", told);
        }
    }
}
