"""A new project: a package of the user's own, which Kindling finds as an extension."""
