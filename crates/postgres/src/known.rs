//! Which tables there are, as far as this process has noticed.

/// The version of the schema in which consumers may finish events singly,
pub const WITH_LEDGERS: i64 = 3;

/// and in which something may be scheduled.
pub const WITH_SCHEDULES: i64 = 4;

/// and in which handlers may have done steps.
pub const WITH_STEPS: i64 = 5;

/// Which tables there are that come with the first use of what they are for, as far as that was noticed. A process
/// that looks at consumers, as all do that wait for something, notices what others have made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// Those of what is scheduled.
    pub schedules: bool,
    pub steps: bool,
    /// That of figures; and this role may use it.
    pub figures: bool,
}

impl Known {
    /// The schema was found to have this version.
    pub fn note(&mut self, version: i64) {
        self.schedules |= version >= WITH_SCHEDULES;
        self.steps |= version >= WITH_STEPS;
    }
}
