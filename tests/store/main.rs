//! Tests the contract of `thread::store::Store` on every implementation.

mod queue;
mod sqlite;

use thread::Queue;
use thread::files::DB;
use thread::sqlite::Sqlite;
use thread_testkit::store::Fresh;

fn on_disk() -> Fresh {
    let dir = tempfile::tempdir().unwrap();
    Queue::init(dir.path()).unwrap();
    // Keeps the directory alive too.
    Fresh::outliving(move || Box::new(Sqlite::open(&dir.path().join(DB)).unwrap()))
}

mod memory_conforms {
    thread_testkit::conformance!(thread_testkit::store::Fresh::in_memory());
}

mod sqlite_conforms {
    thread_testkit::conformance!(crate::on_disk());
}

mod model {
    use thread_testkit::store::{Fresh, all_stores_behave_the_same as compare};

    #[test]
    fn all_stores_behave_the_same() {
        compare(100, || Some([Fresh::in_memory(), crate::on_disk()]));
    }
}
