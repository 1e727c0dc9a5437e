package cli

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// nameRule is the rule for names in documents: 1 to 63 of a-z A-Z 0-9 - _ . and inner spaces. Workflow ids and
// visibility queries are built from names, so that nothing else may get into them.
var nameRule = regexp.MustCompile(`^[A-Za-z0-9_.-]([A-Za-z0-9_. -]{0,61}[A-Za-z0-9_.-])?$`)

// lane is where at most one rollout runs: a deployment in an environment.
type lane struct {
	Deployment, Environment string
}

// String shows the lane for people.
func (l lane) String() string { return l.Deployment + " in " + l.Environment }

// id is the lane's workflow id.
func (l lane) id() string { return workflows.RolloutID(l.Environment, l.Deployment) }

// args is the lane as it is typed.
func (l lane) args() string { return quote(l.Deployment) + " -e " + quote(l.Environment) }

// quote quotes an argument for a shell if it needs it.
func quote(arg string) string {
	if strings.ContainsAny(arg, " '\"$\\`") || arg == "" {
		return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return arg
}

// addEnvironment adds -e.
func addEnvironment(cmd *cobra.Command, environment *string) {
	cmd.Flags().StringVarP(environment, "environment", "e", "", "the environment, e.g. Production")
}

// parseLane reads `web -e Production`.
func parseLane(args []string, environment string) (lane, error) {
	deployment := args[0]
	if name, version, found := strings.Cut(deployment, "@"); found {
		return lane{}, usagef("%s names version %s; a lane is a deployment and an environment: %s -e ENVIRONMENT", deployment, version, name)
	}
	return checkLane(deployment, environment)
}

// parseVersion reads `web@v1.2.3 -e Production`.
func parseVersion(arg, environment string) (lane, string, error) {
	deployment, version, found := strings.Cut(arg, "@")
	if !found || version == "" {
		return lane{}, "", usagef("%s names no version; write DEPLOYMENT@VERSION, e.g. %s@v1.2.3", arg, deployment)
	}
	if !nameRule.MatchString(version) {
		return lane{}, "", usagef("version %q: a name is 1 to 63 of a-z A-Z 0-9 - _ . and inner spaces", version)
	}
	l, err := checkLane(deployment, environment)
	return l, version, err
}

// checkLane refuses what cannot name a lane.
func checkLane(deployment, environment string) (lane, error) {
	if environment == "" {
		return lane{}, usagef("which environment? Give -e, e.g. %s -e Production", quote(deployment))
	}
	for _, one := range []struct{ what, name string }{{"deployment", deployment}, {"environment", environment}} {
		if !nameRule.MatchString(one.name) {
			return lane{}, usagef("%s %q: a name is 1 to 63 of a-z A-Z 0-9 - _ . and inner spaces", one.what, one.name)
		}
	}
	return lane{Deployment: deployment, Environment: environment}, nil
}

// exactArgs wants n arguments and says which.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s", what)
		}
		return nil
	}
}

// laneArgs wants a deployment.
func laneArgs(cmd *cobra.Command, args []string) error {
	return exactArgs(1, "which rollout? Give a deployment and an environment, e.g. `"+cmd.CommandPath()+" web -e Production`")(cmd, args)
}

// versionArgs wants a deployment and a version.
func versionArgs(cmd *cobra.Command, args []string) error {
	return exactArgs(1, "which version? Give a deployment and a version, e.g. `"+cmd.CommandPath()+" web@v1.2.3 -e Production`")(cmd, args)
}
