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

/// A new thread in a directory of its own, which is removed with `dirs`.
fn thread(dirs: &std::cell::RefCell<Option<tempfile::TempDir>>) -> Queue {
    let dir = tempfile::tempdir().unwrap();
    Queue::init(dir.path()).unwrap();
    let queue = Queue::open(dir.path()).unwrap();
    dirs.replace(Some(dir));
    queue
}

mod model {
    use thread_testkit::store::{Fresh, all_stores_behave_the_same as compare};

    #[test]
    fn all_stores_behave_the_same() {
        compare(100, || Some([Fresh::in_memory(), crate::on_disk()]));
    }

    #[test]
    fn figures_are_those_of_a_model() {
        let dirs = Default::default();
        thread_testkit::store::figures_are_those_of_a_model(100, || Some(crate::thread(&dirs)));
    }

    #[test]
    fn the_oldest_of_each_key_is_taken() {
        let dirs = Default::default();
        thread_testkit::store::the_oldest_of_each_key_is_taken(12, || Some(crate::thread(&dirs)));
    }
}
