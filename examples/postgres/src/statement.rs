//! The statements of the store. Each request is one of them, so each is one transaction and one
//! round trip.

use crate::names::SchemaName;

/// A statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sql {
    Acquire,
    Renew,
    Release,
    Waiters,
    Fence,
    Inspect,
    Page,
    ForceRelease,
    ForceRange,
    History,
    Purge,
    HasLockEvents,
}

/// The statements that are prepared when a connection is opened.
pub(crate) const HOT: [Sql; 4] = [Sql::Acquire, Sql::Renew, Sql::Release, Sql::Waiters];

impl Sql {
    pub(crate) const COUNT: usize = 12;

    const ALL: [Self; Self::COUNT] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Waiters,
        Self::Fence,
        Self::Inspect,
        Self::Page,
        Self::ForceRelease,
        Self::ForceRange,
        Self::History,
        Self::Purge,
        Self::HasLockEvents,
    ];

    pub(crate) const fn template(self) -> &'static str {
        match self {
            Self::Acquire => "SELECT * FROM {schema}.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            Self::Renew => "SELECT * FROM {schema}.renew($1, $2, $3, $4, $5, $6)",
            Self::Release => "SELECT {schema}.release($1, $2, $3, $4)",
            Self::Waiters => {
                "SELECT count(*) FROM {schema}.ticket, (SELECT clock_timestamp() AS read_at) c \
                 WHERE key = $1 AND read_at < ends"
            }
            Self::Fence => "SELECT {schema}.fence($1, $2)",
            Self::Inspect => "SELECT * FROM {schema}.held WHERE key = $1",
            Self::Page => {
                "SELECT * FROM {schema}.held WHERE key >= $1 AND ($2::bytea IS NULL OR key < $2) \
                 AND ($3::bytea IS NULL OR key > $3) AND ($4::bytea IS NULL OR id IS NOT NULL AND owner = $4) \
                 ORDER BY key LIMIT $5"
            }
            Self::ForceRelease => "SELECT * FROM {schema}.force_release($1, $2, false, NULL)",
            Self::ForceRange => "SELECT * FROM {schema}.force_range($1, $2, $3, $4, $5, $6)",
            Self::History => {
                "SELECT id, owner, token, {schema}.micros(at) AS at, reason FROM {schema}.forced \
                 WHERE key = $1 ORDER BY nr"
            }
            Self::Purge => "SELECT * FROM {schema}.purge($1, $2, $3)",
            Self::HasLockEvents => {
                "SELECT EXISTS (SELECT FROM pg_trigger \
                 WHERE tgname = 'lock_events' AND tgrelid = '{schema}.lease'::regclass)"
            }
        }
    }
}

/// The texts of the statements for one schema.
#[derive(Debug)]
pub(crate) struct Texts([String; Sql::COUNT]);

impl Texts {
    pub(crate) fn new(schema: &SchemaName) -> Self {
        Self(Sql::ALL.map(|sql| schema.fill_in(sql.template())))
    }

    pub(crate) fn get(&self, sql: Sql) -> &str {
        &self.0[sql as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_is_in_its_place() {
        for (place, sql) in Sql::ALL.into_iter().enumerate() {
            assert_eq!(sql as usize, place);
        }
    }
}
