//! What a filter may access: the columns of the event, and a list of functions.

use std::sync::mpsc::{Receiver, channel};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::Scope;

/// The columns a filter may read.
const COLUMNS: &[&str] = &["id", "created_at", "source", "type", "subtype", "content", "metadata"];

/// Functions whose result depends only on their arguments and whose cost is bounded by the length of these.
/// Deliberately omitted: functions that build long values from short ones, or access anything outside the
/// event.
const PURE_FUNCTIONS: &str = "\
    -> ->> abs char coalesce concat glob hex if ifnull iif instr json json_array_length \
    json_error_position json_extract json_quote json_type json_valid length like likelihood likely \
    lower ltrim max min nullif octet_length round rtrim sign substr substring trim typeof unicode \
    unlikely upper";

/// Functions that may use the clock or the time zone; allowed only for a single read.
const TIME_FUNCTIONS: &str = "\
    current_date current_time current_timestamp date datetime julianday strftime time timediff \
    unixepoch";

/// What SQLite reported while it compiled a statement.
pub enum Seen {
    /// A LIKE or GLOB.
    Pattern,
    /// A denied access, and why.
    Denied(String),
}

/// Returns a callback that SQLite calls, while compiling a statement, for each access, and where it reports to.
pub fn authorizer(
    scope: Scope,
) -> (impl FnMut(AuthContext<'_>) -> Authorization + Send + 'static, Receiver<Seen>) {
    let (report, seen) = channel();
    let mut selects = 0;
    let authorizer = move |context: AuthContext<'_>| {
        selects += u32::from(context.action == AuthAction::Select);
        if let AuthAction::Function { function_name } = context.action
            && ["like", "glob"].iter().any(|name| function_name.eq_ignore_ascii_case(name))
        {
            drop(report.send(Seen::Pattern));
        }
        match authorize(&context.action, scope, selects) {
            Ok(()) => Authorization::Allow,
            Err(reason) => {
                drop(report.send(Seen::Denied(reason)));
                Authorization::Deny
            }
        }
    };
    (authorizer, seen)
}

/// Returns why an access is denied; completes "the filter …".
fn authorize(action: &AuthAction<'_>, scope: Scope, selects: u32) -> Result<(), String> {
    match action {
        // The outermost SELECT is this program's own.
        AuthAction::Select if selects == 1 => Ok(()),
        AuthAction::Select => Err("contains a subquery".to_owned()),
        AuthAction::Read { table_name: "events", column_name }
            if column_name.is_empty() || COLUMNS.contains(column_name) =>
        {
            Ok(())
        }
        AuthAction::Read { table_name, column_name } => {
            Err(format!("reads {table_name}.{column_name}, which is not one of the event's fields"))
        }
        AuthAction::Function { function_name } => {
            let name = function_name.to_ascii_lowercase();
            let is_in = |names: &str| names.split(' ').any(|known| known == name);
            let uses_clock = is_in(TIME_FUNCTIONS);
            match scope {
                _ if is_in(PURE_FUNCTIONS) => Ok(()),
                Scope::Reading if uses_clock => Ok(()),
                Scope::Subscription if uses_clock => Err(format!(
                    "calls {name}(), which may use the clock; compare created_at as text instead, as in \
                     created_at >= '2026-01-01'"
                )),
                _ => Err(format!("calls {name}(), which filters may not call")),
            }
        }
        other => Err(format!("is not a plain condition ({other:?})")),
    }
}
