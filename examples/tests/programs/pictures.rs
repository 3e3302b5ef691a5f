//! The picture of the README is the one that the program draws of the recording beside it.

use crate::run::{HAND_OVER, Run};

const RECORDING: &str = include_str!("../../pictures/hand-over.json");
const PICTURE: &str = include_str!("../../pictures/hand-over.svg");

#[test]
fn the_picture_is_that_of_its_recording() {
    let folder = std::env::temp_dir().join(format!("distlock-picture-{:016x}", fastrand::u64(..)));
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("copy").display().to_string();
    std::fs::write(format!("{file}.json"), RECORDING).unwrap();
    let run = Run::of(HAND_OVER, &["--draw", &file]);
    let drawn = std::fs::read_to_string(format!("{file}.svg"));
    std::fs::remove_dir_all(&folder).unwrap();
    run.assert_proved(&["is drawn"]);
    assert!(drawn.unwrap() == PICTURE, "draw it again: hand-over --draw examples/pictures/hand-over");
}

#[test]
fn a_run_can_be_saved() {
    let folder = std::env::temp_dir().join(format!("distlock-picture-{:016x}", fastrand::u64(..)));
    std::fs::create_dir(&folder).unwrap();
    let run = Run::of(HAND_OVER, &["--lease", "3", "--save", &folder.join("new").display().to_string()]);
    let picture = std::fs::read_to_string(folder.join("new.svg"));
    std::fs::remove_dir_all(&folder).unwrap();
    run.assert_proved(&["A is KILLED"]);
    assert_eq!((run.sum("holds"), run.sum("overlaps")), (6, 0), "{}", run.all());
    assert!(picture.unwrap().ends_with("</svg>\n"));
}
