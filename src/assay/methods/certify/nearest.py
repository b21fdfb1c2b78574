"""How far is an input from the decision boundary of a nearest-neighbour classifier? Exactly for 1-NN, bounds for K-NN.

The classifier compares d_M(x, x') = (x - x')' M (x - x'), M = I unless a metric is given; the change of the input is
always measured in its plain norm. On the embeddings of a network, all of it is about changes of the embedding. For 1-NN
a tie of distances counts as broken, so that a point that two classes share stands on the boundary.

    certified_radius <= exact_radius (K = 1) <= attack

Sources: Wang, Liu, Yi, Zhou & Hsieh 2019, arXiv:1906.03972; for metrics Wang, Liu, Yi, Jiang & Hsieh 2020,
arXiv:2006.07024. Equations and algorithms are numbered as in the thesis that holds both, 'Building Trustworthy Machine
Learning Models', sec. 3.1 and 3.2.
"""

from assay.methods.certify.nearest_attack import attack
from assay.methods.certify.nearest_bound import certified_radius
from assay.methods.certify.nearest_cell import Radius, in_two_classes
from assay.methods.certify.nearest_exact import exact_radius

__all__ = ["Radius", "attack", "certified_radius", "exact_radius", "in_two_classes"]
