"""What all packages stand on: the version, errors that tell users what is wrong, files that appear whole or not at all,
checksums, Ctrl-C, memory, and extensions. It imports no other package of this project.
"""

__version__ = "0.2.0.dev0"
DISTRIBUTION = "ffn-nas"
