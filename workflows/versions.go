package workflows

// Changes to what a workflow does, by which a run that began before them is told from one that knows them. Each stands
// here for as long as such a run may be open.
const (
	// changeByHand: rollbacks of one target or wave are carried out. Earlier they were refused.
	changeByHand = "rollback by hand"
	// changeRetryHeld: a target whose checks came to no conclusion may be measured again. Earlier that was refused.
	changeRetryHeld = "retry what is held"
	// changeSkipped: a target that did not come back by hand and was skipped stays as it is when its wave closes. Earlier it
	// was taken back once more.
	changeSkipped = "skipped after a rollback by hand"
	// changeGoesOn: a wave tells its rollout that it is paused no more.
	changeGoesOn = "say that a wave goes on"
	// changeTellsHeld: a wave tells its rollout of each further target that a person should look at.
	changeTellsHeld = "tell of each that needs a look"
	// changeMarksStop: a stop is noted in the ledger, where each change that is about to be asked for looks.
	changeMarksStop = "mark a stop"
)
